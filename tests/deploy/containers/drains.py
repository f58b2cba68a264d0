"""Stop a worker's container in a batch again and again: `python -m tests.deploy.containers.drains 100`.

Prints how long each stop took. Needs scripts/containers. An assertion fails unless leases were given back at each stop,
each next worker continued the kept output, and every line of the last batch has one result, billed once.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cli.embedded.sockets import free_port
from tests.deploy.containers.composed import Composed, until
from tests.e2e.builders import Customer, chat

NUM_LINES = 10_000
LEASED = "SELECT count(*) FROM chunk WHERE state = 'leased'"
COUNTS = """
    SELECT count(token_ids), coalesce(sum(cardinality(token_ids)), 0),
        (SELECT coalesce(sum(output_tokens), 0) FROM result),
        (SELECT coalesce(engine_stats->>'generation_tokens_total', '0') FROM worker ORDER BY started_at DESC LIMIT 1)
    FROM checkpoint WHERE NOT EXISTS (
        SELECT FROM result WHERE result.batch_id = checkpoint.batch_id AND result.line_no = checkpoint.line_no
    )
"""
HEARTBEATS_SHARE = 0.5
"""Of the kept tokens, most that may seem generated again: the engine's count is that of the last heartbeat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Tokens after a stop."""

    kept_lines: int = 0
    """Lines without a result whose output is kept."""
    kept: int = 0
    answered: int = 0
    """In results."""
    generated: int = 0
    """By the last worker."""

    @classmethod
    def of(cls, stack: Composed) -> Counts:
        kept_lines, kept, answered, generated = (int(float(each)) for each in stack.query(COUNTS)[0])
        return cls(kept_lines=kept_lines, kept=kept, answered=answered, generated=generated)

    def generated_again(self, before: Counts) -> int:
        """Return the tokens that the worker generated and that neither became results nor are kept."""
        return self.generated - (self.answered - before.answered) - (self.kept - before.kept)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("times", type=int)
    times = parser.parse_args().times
    with tempfile.TemporaryDirectory(prefix="drains") as folder:
        stack = Composed(folder=Path(folder), port=free_port())
        stack.lay_out()
        try:
            stack.up()
            stack.add_tenant("acme")
            drain_again_and_again(Customer(id="acme", client=stack.client(), stack=stack), times)
        finally:
            stack.run(stack.compose, "down", "--volumes", "--timeout", "5")


def drain_again_and_again(customer: Customer, times: int) -> None:
    stack, until_back, until_ended, batch_id = customer.stack, list[float](), list[float](), next_batch(customer)
    counts = Counts()
    for number in range(1, times + 1):
        if stack.num_done(batch_id) > NUM_LINES * 0.8:
            batch_id = next_batch(customer)
        before = stack.num_done(batch_id)
        while stack.num_done(batch_id) == before:
            time.sleep(0.2)
        back, ended = stop(stack)
        until_back.append(back)
        until_ended.append(ended)
        kept_before, counts = counts, Counts.of(stack)
        again = counts.generated_again(kept_before)
        kept = (
            f"{counts.kept_lines} lines with {counts.kept} tokens kept, {again} of {kept_before.kept} generated again"
        )
        print(f"{number}: {back:.1f} s, ended after {ended:.1f} s, {kept}, load {os.getloadavg()[0]:.0f}", flush=True)
        assert again <= HEARTBEATS_SHARE * kept_before.kept, "the next worker continues the kept output"
        stack.call("start", "worker-cpu")
    for name, seconds in (("leases were back", until_back), ("ended", until_ended)):
        print(f"{name} after {shown(seconds)}")
    until(lambda: stack.num_done(batch_id) == NUM_LINES, stack, seconds=3600)
    customer.answers(batch_id, num_lines=NUM_LINES)
    assert stack.audit() == "clean"
    assert stack.query("SELECT max(losses) FROM chunk") == [("0",)], "what is given back is not lost"


def shown(seconds: Sequence[float]) -> str:
    """Return the median, the 99th percentile and the maximum in words."""
    in_order = sorted(seconds)
    p99 = in_order[math.ceil(0.99 * len(in_order)) - 1]
    return (
        f"{statistics.median(in_order):.1f} s in the median of {len(in_order)}, {p99:.1f} s in 99 % "
        f"and {in_order[-1]:.1f} s at most"
    )


def next_batch(customer: Customer) -> str:
    """Submit lines of several lengths, most of which are long enough to be cut by a stop."""
    lines = (
        chat(f"Invoice {number}", max_tokens=140 + 100 * (number % 4), ignore_eos=True) for number in range(NUM_LINES)
    )
    return customer.submit(lines)


def stop(stack: Composed) -> tuple[float, float]:
    """Stop the worker; return the seconds until its leases were back and it signed off, and until its process ended."""
    (worker,) = stack.ids("worker-cpu")
    began = time.time()
    stack.run("docker", "stop", "--time", "60", worker)
    ended = time.time()
    assert stack.exit_codes("worker-cpu") == {"0"}, "137: killed at the end of its grace"
    assert stack.query(LEASED) == [("0",)]
    ((signed_off,),) = stack.query("SELECT extract(epoch FROM max(stopped_at)) FROM worker WHERE model = 'demo'")
    return float(signed_off) - began, ended - began


if __name__ == "__main__":
    main()
