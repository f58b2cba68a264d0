"""Measure the speed of `Embedder` against others on the same weights, in turn, on generated texts.

Says nothing about the quality of vectors, only how far the sides' vectors differ.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoTokenizer

from benchmarks.arguments import natural
from engine import Embedder
from lab.extraction.embedding_peers import Embed, Vectors, find_peers

_OURS = "tokenmill"

_MEDIAN_WORDS, _SPREAD, _MAX_WORDS = 30, 0.8, 400
"""Lengths are drawn from a lognormal distribution: a passage or two, some longer than the model's maximum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """The measurements of one side, per turn."""

    seconds: tuple[float, ...]
    processor_seconds: tuple[float, ...]


def main(argv: Sequence[str]) -> int:
    """Embed the texts on all sides in turn, print the measurements, and return the exit code."""
    arguments = _parse(argv)
    torch.set_num_threads(arguments.num_threads)
    path = Path(arguments.model)
    embedder = Embedder(path)
    peers = find_peers(path, num_threads=arguments.num_threads, max_tokens=embedder.max_tokens)
    texts = make_texts(whole_words(path), num_texts=arguments.texts, seed=arguments.seed)
    sides: dict[str, Embed] = {_OURS: lambda own: embedder.embed(own).vectors}
    durations, vectors = measure(
        sides | {name: peer for name, peer in peers.items() if not isinstance(peer, str)}, texts, turns=arguments.turns
    )
    print(f"{len(texts)} texts, {sum(embedder.embed(texts).num_tokens)} tokens, {arguments.num_threads} threads")
    for name, side in durations.items():
        print(_row(name, side, durations[_OURS], num_texts=len(texts)))
    for name, peer in peers.items():
        if isinstance(peer, str):
            print(f"{name:22} {peer}")
    differences = [np.abs(own - vectors[_OURS]).max() for own in vectors.values()]
    print(f"largest difference of the vectors: {max(differences):.1e}")
    return 0


def measure(sides: dict[str, Embed], texts: list[str], *, turns: int) -> tuple[dict[str, Side], dict[str, Vectors]]:
    """Let the sides embed the texts in turn, after a warm-up turn; return their times and vectors."""
    vectors = {name: embed(texts) for name, embed in sides.items()}
    durations: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for _ in range(turns):
        for name, embed in sides.items():
            wall, processor = time.perf_counter(), time.process_time()
            embed(texts)
            durations[name].append((time.perf_counter() - wall, time.process_time() - processor))
    return {name: _side(own) for name, own in durations.items()}, vectors


def make_texts(words: Sequence[str], *, num_texts: int, seed: int) -> list[str]:
    """Return texts of these words in random order."""
    numbers = random.Random(seed)
    sizes = [numbers.lognormvariate(np.log(_MEDIAN_WORDS), _SPREAD) for _ in range(num_texts)]
    return [" ".join(numbers.choices(words, k=max(1, min(_MAX_WORDS, int(size))))) for size in sizes]


def whole_words(path: Path) -> list[str]:
    """Return the whole words of a tokenizer's vocabulary."""
    tokenizer: Any = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    return sorted(word for piece in tokenizer.get_vocab() if (word := piece.lstrip("▁Ġ")).isalpha())


def _side(durations: Sequence[tuple[float, float]]) -> Side:
    seconds, processor_seconds = zip(*durations, strict=True)
    return Side(seconds=seconds, processor_seconds=processor_seconds)


def _row(name: str, side: Side, ours: Side, *, num_texts: int) -> str:
    """Return a side's medians; for another side also its time relative to ours per turn: under load, turns differ."""
    rate, processor = num_texts / statistics.median(side.seconds), statistics.median(side.processor_seconds)
    row = f"{name:22} {rate:8.1f} texts/s {processor:8.2f} CPU s"
    if side is ours:
        return row
    times, processor_times = _ratio(side.seconds, ours.seconds), _ratio(side.processor_seconds, ours.processor_seconds)
    return f"{row}; {_OURS} is {times:.2f} times as fast, in CPU time {processor_times:.2f}"


def _ratio(theirs: Sequence[float], ours: Sequence[float]) -> float:
    return statistics.median(one / other for one, other in zip(theirs, ours, strict=True))


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tokenmill bench extraction embeddings", description=__doc__)
    parser.add_argument("--model", required=True, help="folder of an embedding model with normalized vectors")
    parser.add_argument("--texts", type=natural, default=400)
    parser.add_argument("--turns", type=natural, default=5)
    parser.add_argument("--num-threads", type=natural, default=2)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(argv)
