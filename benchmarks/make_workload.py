"""Write a workload of random prompts, for measurements: output lengths heavy-tailed, or all lengths as in a trace.

python -m benchmarks.make_workload OUT.jsonl --requests 128 --seed 0
python -m benchmarks.make_workload OUT.jsonl --requests 500 --trace TRACE.csv.gz
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from benchmarks.arguments import natural, positive
from benchmarks.traces import TraceError, TraceRow, read_trace


def heavy_tailed_requests(
    count: int,
    *,
    vocab_size: int,
    prompt_tokens: tuple[int, int],
    output_tokens: tuple[int, int],
    tail: float,
    seed: int,
) -> Iterator[dict[str, Any]]:
    """Yield requests: prompt lengths uniform in the closed range, output lengths Pareto(`tail`) within theirs.

    P(output > n) = (low / n)^tail; draws above the high end are drawn again. The smaller `tail`, the heavier.
    """
    generator = random.Random(seed)
    low, high = output_tokens
    for _ in range(count):
        length = high + 1
        while length > high:
            length = int(low * generator.paretovariate(tail))
        yield _request(
            generator, vocab_size, num_prompt_tokens=generator.randint(*prompt_tokens), num_output_tokens=length
        )


def traced_requests(rows: list[TraceRow], count: int, *, vocab_size: int, seed: int) -> Iterator[dict[str, Any]]:
    """Yield requests as long as a trace's, which begins again at its end; they are all there at the start."""
    generator = random.Random(seed)
    for row in islice(cycle(rows), count):
        yield _request(
            generator, vocab_size, num_prompt_tokens=row.num_prompt_tokens, num_output_tokens=row.num_output_tokens
        )


def _request(
    generator: random.Random, vocab_size: int, *, num_prompt_tokens: int, num_output_tokens: int
) -> dict[str, Any]:
    return {
        "prompt_token_ids": [generator.randrange(vocab_size) for _ in range(num_prompt_tokens)],
        "max_tokens": num_output_tokens,
        "ignore_eos": True,
        "arrival_seconds": 0.0,
    }


def main(argv: list[str] | None = None) -> int:
    """Write the file named on the command line; return the exit code."""
    parser = _parser()
    given = parser.parse_args(argv)
    for name in ("prompt_tokens", "output_tokens"):
        low, high = getattr(given, name)
        if low > high:
            parser.error(
                f"--{name.replace('_', '-')} {low} {high}: the first is the least number and the second the most."
            )
    try:
        requests = _requests(given)
    except TraceError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    given.out.write_text("".join(json.dumps(request) + "\n" for request in requests))
    print(f"{given.requests} requests written to {given.out}")
    return 0


def _requests(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    if given.trace is not None:
        return traced_requests(read_trace(given.trace), given.requests, vocab_size=given.vocab_size, seed=given.seed)
    return heavy_tailed_requests(
        given.requests,
        vocab_size=given.vocab_size,
        prompt_tokens=tuple(given.prompt_tokens),
        output_tokens=tuple(given.output_tokens),
        tail=given.tail,
        seed=given.seed,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--requests", type=natural, default=128)
    parser.add_argument("--vocab-size", type=natural, default=49152)
    parser.add_argument("--prompt-tokens", type=natural, nargs=2, default=(16, 64), metavar=("LOW", "HIGH"))
    parser.add_argument("--output-tokens", type=natural, nargs=2, default=(16, 1024), metavar=("LOW", "HIGH"))
    parser.add_argument("--tail", type=positive, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--trace", type=Path, help="CSV of lengths to take in place of the ranges above")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
