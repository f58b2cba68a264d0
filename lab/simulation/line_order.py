"""The effect of the order of a batch's waiting lines: the share of prompts found in the cache, and the batch's end.

One batch on one simulated worker with as many open chunks as a real one; all figures are the cost model's.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from engine.config import PolicyName, SchedulerConfig
from engine.stats import CacheCounters
from jobs.states import Priority
from lab import study
from lab.simulation.batches import BatchSimulator
from lab.simulation.simulated_batches import SimulatedBatch, SimulatedLine
from lab.traces import TraceRow

_MAX_SEQS = 256
SHARING = ((100, 12, 20_000), (300, 4, study.NUM_KV_BLOCKS), (1000, 2, study.NUM_KV_BLOCKS))
"""(prefixes, lines with each, KV blocks): there is room for between a tenth and half of the prefixes."""
_MEAN_PREFIX, _LEAST_PREFIX, _MOST_PREFIX = 6000, 512, 24_000
_OWN_TOKENS = (100, 1500)
_MEAN_OUTPUT, _MOST_OUTPUT = 200, 1024
BATCH_LINES = (500, 2000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a batch."""

    seconds: float
    cache: CacheCounters

    @property
    def found_share(self) -> float:
        """Return the share of the prompts that was in the cache."""
        return self.cache.num_cached_tokens / self.cache.num_looked_up_tokens


def run(
    lines: Sequence[SimulatedLine],
    policy: PolicyName,
    *,
    num_kv_blocks: int = study.NUM_KV_BLOCKS,
    max_num_seqs: int = _MAX_SEQS,
) -> Outcome:
    """Run a batch of these lines."""
    config = SchedulerConfig(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=study.MAX_NUM_BATCHED_TOKENS,
        max_model_len=study.MAX_MODEL_LEN,
        policy=policy,
    )
    simulator = BatchSimulator(study.H200_LLAMA_8B, config, num_workers=1, num_kv_blocks=num_kv_blocks)
    batch = SimulatedBatch(
        number=0,
        tenant="one",
        weight=1.0,
        priority=Priority.NORMAL,
        arrival_seconds=0.0,
        lines=lines,
        max_tokens=max(line.num_output_tokens for line in lines),
    )
    simulator.run([batch], every_seconds=1e9, look=lambda now: None)
    (cache,) = simulator.cache_counters()
    return Outcome(seconds=batch.end_seconds, cache=cache)


def sharing_lines(num_prefixes: int, lines_each: int, *, seed: int = 0) -> list[SimulatedLine]:
    """Make lines that share long prefixes with a few others anywhere in the file: the prefixes are interleaved.

    Lengths are exponential, with means as in conversations with documents and tools.
    """
    generator = random.Random(seed)
    prefixes = [_drawn(generator, _MEAN_PREFIX, _LEAST_PREFIX, _MOST_PREFIX) for _ in range(num_prefixes)]
    lines = [
        SimulatedLine(
            prefix + generator.randint(*_OWN_TOKENS),
            _drawn(generator, _MEAN_OUTPUT, 1, _MOST_OUTPUT),
            prefix=f"beginning {number}",
            num_prefix_tokens=prefix,
        )
        for number, prefix in enumerate(prefixes)
        for _ in range(lines_each)
    ]
    generator.shuffle(lines)
    return lines


def most_found(lines: Sequence[SimulatedLine]) -> float:
    """Return the share of the prompts that an unlimited cache would hold: each prefix is computed once."""
    computed = {line.prefix: line.num_prefix_tokens for line in lines}
    num_found = sum(line.num_prefix_tokens for line in lines) - sum(computed.values())
    return num_found / sum(line.num_prompt_tokens for line in lines)


def longest_first(lines: Sequence[SimulatedLine]) -> list[SimulatedLine]:
    """Sort lines so that the longest outputs start first, as if lengths were known: no forecast does better."""
    return [line._replace(seconds_earlier=float(line.num_output_tokens)) for line in lines]


def by_prompt_table() -> str:
    """Return hit rates and ends in the order of arrival and in that of the prompts."""
    rows = []
    for num_prefixes, lines_each, num_kv_blocks in SHARING:
        lines = sharing_lines(num_prefixes, lines_each)
        before, after = (
            run(lines, policy, num_kv_blocks=num_kv_blocks) for policy in (PolicyName.FCFS, PolicyName.PRIORITY)
        )
        shares = f"{before.found_share:.1%} | {after.found_share:.1%} | {most_found(lines):.1%}"
        rows.append(f"{num_prefixes} × {lines_each} | {num_kv_blocks:,} | {shares} | {_seconds(before, after)}")
    head = "beginnings × lines | KV blocks | found, by arrival | by prompt | at most | end, s, by arrival | by prompt"
    return _table(head, rows)


def longest_first_table(rows: Sequence[TraceRow], *, seed: int = 0) -> str:
    """Return the ends in order of arrival and with the longest first, for lines of a trace and generated ones."""
    generator = random.Random(seed)
    fitting = [row for row in rows if row.num_prompt_tokens + row.num_output_tokens < study.MAX_MODEL_LEN // 2]
    table_rows = []
    for count in BATCH_LINES:
        drawn = [generator.choice(fitting) for _ in range(count)]
        kinds = {
            "as the trace": [SimulatedLine(row.num_prompt_tokens, row.num_output_tokens) for row in drawn],
            "short prompts, heavy-tailed outputs": [
                SimulatedLine(100, max(1, min(4000, int(generator.lognormvariate(5.7, 1.0))))) for _ in range(count)
            ],
            "1 in 8 of 1,000 tokens, the others of 25": [
                SimulatedLine(300, 1000 if number % 8 == 0 else 25) for number in range(count)
            ],
            "the same, the long ones last": [
                SimulatedLine(300, 1000 if number >= count * 7 // 8 else 25) for number in range(count)
            ],
        }
        for name, lines in kinds.items():
            before, after = (run(each, PolicyName.PRIORITY) for each in (lines, longest_first(lines)))
            table_rows.append(f"{count:,}, {name} | {_seconds(before, after)}")
    return _table("lines | end, s, by arrival | longest first", table_rows)


def _drawn(generator: random.Random, mean: float, least: int, most: int) -> int:
    return min(most, max(least, int(generator.expovariate(1 / mean))))


def _seconds(before: Outcome, after: Outcome) -> str:
    return f"{before.seconds:.1f} | {after.seconds:.1f} ({after.seconds / before.seconds - 1:+.1%})"


def _table(head: str, rows: Sequence[str]) -> str:
    rule = " | ".join("---" for _ in head.split(" | "))
    return "\n".join(f"| {row} |" for row in (head, rule, *rows)) + "\n"
