"""Write a workload for measurements: random prompts (named, of given lengths, or as in a trace), or real text.

python -m lab.make_workload OUT.jsonl --like W1 --seed 0
python -m lab.make_workload OUT.jsonl --requests 128 --shared-prefix 512 --prefixes 4
python -m lab.make_workload OUT.jsonl --requests 500 --trace TRACE.csv.gz
python -m lab.make_workload OUT.jsonl --lines BATCH.jsonl --tokenizer MODEL   (of an OpenAI batch file)
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from benchmarks.arguments import natural, positive
from engine.errors import EngineError
from lab.batch_lines import BatchLineError, requests_of_lines
from lab.traces import TraceError, TraceRow, read_trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """The number of requests and their lengths."""

    num_requests: int = 128
    prompt_tokens: tuple[int, int] = (16, 64)
    """Minimum and maximum, without the prefix."""
    prompt_tail: float | None = None
    """None: uniform; otherwise Pareto, as for outputs."""
    output_tokens: tuple[int, int] = (16, 1024)
    tail: float = 1.0
    """P(output > n) = (low / n)^tail; draws above the high end are repeated. A smaller value is a heavier tail."""
    prefix_tokens: int = 0
    """Length of the prefix that a prompt shares with others."""
    num_prefixes: int = 1
    """Number of prefixes; each prompt draws one."""


LIKE = {
    "W1": Lengths(prompt_tokens=(40, 360), prompt_tail=1.0, output_tokens=(18, 400)),
    "W2": Lengths(prompt_tokens=(32, 32), output_tokens=(32, 32), prefix_tokens=512),
    "W3": Lengths(num_requests=8, prompt_tokens=(64, 64), output_tokens=(128, 128)),
    "long-prompts": Lengths(num_requests=32, prompt_tokens=(1024, 3072), output_tokens=(8, 24), tail=1.5),
    "prefixes": Lengths(prompt_tokens=(16, 64), output_tokens=(32, 32), prefix_tokens=384, num_prefixes=8),
    "long-outputs": Lengths(num_requests=32, prompt_tokens=(16, 64), output_tokens=(512, 1024), tail=2.0),
}
"""The workloads of docs/performance.md, and more that resemble batches."""


def random_requests(lengths: Lengths, *, vocab_size: int, seed: int) -> Iterator[dict[str, Any]]:
    """Yield requests of random tokens."""
    generator = random.Random(seed)
    prefixes = [
        [generator.randrange(vocab_size) for _ in range(lengths.prefix_tokens)] for _ in range(lengths.num_prefixes)
    ]
    for _ in range(lengths.num_requests):
        num_output_tokens = _pareto(generator, lengths.output_tokens, lengths.tail)
        num_prompt_tokens = (
            generator.randint(*lengths.prompt_tokens)
            if lengths.prompt_tail is None
            else _pareto(generator, lengths.prompt_tokens, lengths.prompt_tail)
        )
        prefix = prefixes[generator.randrange(len(prefixes))] if len(prefixes) > 1 else prefixes[0]
        request = _request(
            generator, vocab_size, num_prompt_tokens=num_prompt_tokens, num_output_tokens=num_output_tokens
        )
        yield {**request, "prompt_token_ids": [*prefix, *request["prompt_token_ids"]]}


def _pareto(generator: random.Random, limits: tuple[int, int], tail: float) -> int:
    low, high = limits
    length = low if low == high else high + 1
    while length > high:
        length = int(low * generator.paretovariate(tail))
    return length


def traced_requests(rows: list[TraceRow], count: int, *, vocab_size: int, seed: int) -> Iterator[dict[str, Any]]:
    """Yield requests of a trace's lengths, repeating the trace at its end; all arrive at the start."""
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
    arguments = parser.parse_args(argv)
    if arguments.like is not None and arguments.trace is not None:
        parser.error("--like and --trace both set the lengths of requests; give one.")
    if (arguments.lines is None) != (arguments.tokenizer is None):
        parser.error("--lines and --tokenizer go together: a batch file, and the model whose tokenizer is used.")
    if arguments.lines is not None and (arguments.like is not None or arguments.trace is not None):
        parser.error("--lines sets the prompts and their lengths; leave --like and --trace out.")
    if arguments.prefixes > 1 and not arguments.shared_prefix:
        parser.error(f"--prefixes {arguments.prefixes}: give their length with --shared-prefix.")
    for name in ("prompt_tokens", "output_tokens"):
        low, high = getattr(arguments, name)
        if low > high:
            parser.error(
                f"--{name.replace('_', '-')} {low} {high}: the first number is the minimum and the second the maximum."
            )
    try:
        lines = [json.dumps(request) + "\n" for request in _requests(arguments)]
    except (TraceError, BatchLineError, EngineError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    arguments.out.write_text("".join(lines))
    print(f"{len(lines)} requests written to {arguments.out}")
    return 0


def _requests(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    if arguments.lines is not None:
        return requests_of_lines(arguments.lines, arguments.tokenizer)
    if arguments.trace is not None:
        return traced_requests(
            read_trace(arguments.trace), arguments.requests, vocab_size=arguments.vocab_size, seed=arguments.seed
        )
    lengths = Lengths(
        num_requests=arguments.requests,
        prompt_tokens=tuple(arguments.prompt_tokens),
        prompt_tail=arguments.prompt_tail,
        output_tokens=tuple(arguments.output_tokens),
        tail=arguments.tail,
        prefix_tokens=arguments.shared_prefix,
        num_prefixes=arguments.prefixes,
    )
    return random_requests(
        LIKE[arguments.like] if arguments.like else lengths, vocab_size=arguments.vocab_size, seed=arguments.seed
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--like", choices=list(LIKE), help="a named workload instead of the lengths below")
    parser.add_argument("--requests", type=natural, default=128)
    parser.add_argument("--vocab-size", type=natural, default=49152)
    parser.add_argument("--prompt-tokens", type=natural, nargs=2, default=(16, 64), metavar=("LOW", "HIGH"))
    parser.add_argument("--output-tokens", type=natural, nargs=2, default=(16, 1024), metavar=("LOW", "HIGH"))
    parser.add_argument("--tail", type=positive, default=1.0)
    parser.add_argument("--prompt-tail", type=positive, help="tail of prompt lengths; default: uniform")
    parser.add_argument(
        "--shared-prefix", type=natural, default=0, metavar="TOKENS", help="length of the shared prefix"
    )
    parser.add_argument("--prefixes", type=natural, default=1, help="number of shared prefixes; each prompt draws one")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--trace", type=Path, help="CSV of lengths to use instead of the ranges above")
    parser.add_argument("--lines", type=Path, help="an OpenAI batch file of chat completions instead of random prompts")
    parser.add_argument(
        "--tokenizer", metavar="MODEL", help="model whose tokenizer and chat template are used for --lines"
    )
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
