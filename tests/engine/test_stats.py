"""Tests that statistics, once read, do not change while the engine goes on counting."""

from __future__ import annotations

from engine.stats import SchedulerCounters, Sizes, Timings, snapshot


def test_times_that_were_read_do_not_change_while_others_are_added() -> None:
    timings = Timings()
    timings.queue_time.add(0.5)
    read = timings.snapshot()
    timings.queue_time.add(0.5)
    assert (sum(read.queue_time.counts), read.queue_time.sum_seconds) == (1, 0.5)


def test_counters_that_were_read_do_not_change_while_steps_are_counted() -> None:
    counters = SchedulerCounters(num_steps=3)
    read = snapshot(counters)
    counters.num_steps += 1
    assert read.num_steps == 3


def test_sizes_that_were_read_do_not_change_while_others_are_added() -> None:
    sizes = Sizes()
    sizes.step_sequences.add(4)
    read = sizes.snapshot()
    sizes.step_sequences.add(4)
    assert (sum(read.step_sequences.counts), read.step_sequences.sum) == (1, 4)
