"""Shared parts of the benchmarks' command lines: types of checked numbers and lists, and an engine's options."""

from __future__ import annotations

import argparse
import math
from typing import Any

from engine.config import EngineConfig


def natural(text: str) -> int:
    """Return a whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is given; it must be a whole number of at least 1.")
    return int(text)


def positive(text: str) -> float:
    """Return a finite number above 0."""
    number = _number(text)
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is given; it must be a number above 0.")
    return number


def fraction(text: str) -> float:
    """Return a number above 0 and at most 1."""
    if not 0 < _number(text) <= 1:
        raise argparse.ArgumentTypeError(f"{text} is given; it must be above 0 and at most 1.")
    return float(text)


def naturals(text: str) -> list[int]:
    """Return whole numbers of at least 1, separated by commas."""
    return [natural(part) for part in text.split(",")]


def names(text: str) -> list[str]:
    """Return names separated by commas."""
    return text.split(",")


def add_limits(
    parser: argparse.ArgumentParser,
    *,
    max_num_seqs: int = 128,
    max_num_batched_tokens: int = 1024,
    num_kv_blocks: int | None = None,
) -> None:
    """Declare the limits of an engine, or of a simulated one."""
    parser.add_argument("--max-num-seqs", type=natural, default=max_num_seqs)
    parser.add_argument("--max-num-batched-tokens", type=natural, default=max_num_batched_tokens)
    parser.add_argument("--num-kv-blocks", type=natural, default=num_kv_blocks)


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `engine_config`."""
    parser.add_argument("--model", required=True, help="model folder or Hugging Face id")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--num-threads", type=natural)
    add_limits(parser)


def engine_config(arguments: argparse.Namespace, **more: Any) -> EngineConfig:
    """Return the configuration that a command line selects; `more` are fields with options of their own."""
    return EngineConfig(
        model=arguments.model,
        device=arguments.device,
        num_threads=arguments.num_threads,
        max_num_seqs=arguments.max_num_seqs,
        max_num_batched_tokens=arguments.max_num_batched_tokens,
        num_kv_blocks=arguments.num_kv_blocks,
        **more,
    )


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
