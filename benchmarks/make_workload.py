"""Write a workload of random prompts with heavy-tailed output lengths, for measurements. Knows no engine.

python -m benchmarks.make_workload OUT.jsonl --requests 128 --seed 0
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any


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
        yield {
            "prompt_token_ids": [generator.randrange(vocab_size) for _ in range(generator.randint(*prompt_tokens))],
            "max_tokens": length,
            "ignore_eos": True,
            "arrival_seconds": 0.0,
        }


def main(argv: list[str] | None = None) -> int:
    """Write the file named on the command line; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--requests", type=int, default=128)
    parser.add_argument("--vocab-size", type=int, default=49152)
    parser.add_argument("--prompt-tokens", type=int, nargs=2, default=(16, 64), metavar=("LOW", "HIGH"))
    parser.add_argument("--output-tokens", type=int, nargs=2, default=(16, 1024), metavar=("LOW", "HIGH"))
    parser.add_argument("--tail", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(argv)
    requests = heavy_tailed_requests(
        given.requests,
        vocab_size=given.vocab_size,
        prompt_tokens=tuple(given.prompt_tokens),
        output_tokens=tuple(given.output_tokens),
        tail=given.tail,
        seed=given.seed,
    )
    given.out.write_text("".join(json.dumps(request) + "\n" for request in requests))
    print(f"{given.requests} requests written to {given.out}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
