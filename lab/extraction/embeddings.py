"""Measure the speed of `Embedder` against others on the same weights, in turn, on generated texts or a collection's.

The quality of vectors is not measured, only how far the sides' vectors differ: see `retrieval`.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoTokenizer

from benchmarks.arguments import names, natural
from engine import Embedder
from engine.errors import EngineError
from engine.pooling.encoders.dtypes import Dtype
from lab.extraction.embedding_peers import Embed, Peer, Vectors, find_peers
from lab.extraction.retrieval import read

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
    try:
        own = {Peer(_OURS, dtype): Embedder(path, dtype=dtype) for dtype in arguments.dtypes}
    except EngineError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    first = next(iter(own.values()))
    peers = find_peers(path, num_threads=arguments.num_threads, max_tokens=first.max_tokens, dtypes=arguments.dtypes)
    texts = _texts(arguments, path)
    sides: dict[Peer, Embed] = {side: partial(_embed, embedder) for side, embedder in own.items()}
    sides |= {peer: made for peer, made in peers.items() if not isinstance(made, str)}
    durations, vectors = measure(sides, texts, turns=arguments.turns)
    num_tokens = sum(first.embed(texts).num_tokens)
    load = os.getloadavg()[0]
    print(f"{len(texts)} texts, {num_tokens} tokens, {arguments.num_threads} threads, load {load:.1f}")
    for peer, side in durations.items():
        ours = None if peer in own else durations[_ours_beside(peer, own)]
        print(_row(peer, side, ours, num_texts=len(texts)))
    for peer, made in peers.items():
        if isinstance(made, str):
            print(f"{_name(peer)} {made}")
    _print_differences(vectors)
    return 0


def _embed(embedder: Embedder, texts: list[str]) -> Vectors:
    return embedder.embed(texts).vectors


def _ours_beside(peer: Peer, own: Collection[Peer]) -> Peer:
    """Return our side of a peer's dtype, or our first one."""
    return next((side for side in own if side.dtype == peer.dtype), next(iter(own)))


def _print_differences(vectors: Mapping[Peer, Vectors]) -> None:
    """Print how far the vectors of each dtype are from the first side's."""
    first = next(iter(vectors.values()))
    for dtype in dict.fromkeys(peer.dtype for peer in vectors):
        others = [own for peer, own in vectors.items() if peer.dtype == dtype]
        largest = max(float(np.abs(own - first).max()) for own in others)
        lowest = min(float((own * first).sum(1).min()) for own in others)
        print(f"largest difference of the vectors in {dtype}: {largest:.1e}; smallest cosine: {lowest:.5f}")


def measure(sides: dict[Peer, Embed], texts: list[str], *, turns: int) -> tuple[dict[Peer, Side], dict[Peer, Vectors]]:
    """Let the sides embed the texts in turn, after a warm-up turn; return their times and vectors."""
    vectors = {peer: embed(texts) for peer, embed in sides.items()}
    durations: dict[Peer, list[tuple[float, float]]] = {peer: [] for peer in sides}
    for _ in range(turns):
        for peer, embed in sides.items():
            wall, processor = time.perf_counter(), time.process_time()
            embed(texts)
            durations[peer].append((time.perf_counter() - wall, time.process_time() - processor))
    return {peer: _side(own) for peer, own in durations.items()}, vectors


def _texts(arguments: argparse.Namespace, path: Path) -> list[str]:
    if arguments.documents is None:
        return make_texts(whole_words(path), num_texts=arguments.texts, seed=arguments.seed)
    return list(read(arguments.documents).documents.values())[: arguments.texts]


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


def _name(peer: Peer) -> str:
    return f"{peer.name:22} {peer.dtype:9}"


def _row(peer: Peer, side: Side, ours: Side | None, *, num_texts: int) -> str:
    """Return a side's medians; for another side also its time relative to ours per turn: under load, turns differ."""
    rate, processor = num_texts / statistics.median(side.seconds), statistics.median(side.processor_seconds)
    row = f"{_name(peer)} {rate:8.1f} texts/s {processor:8.2f} CPU s"
    if ours is None:
        return row
    times, processor_times = _ratio(side.seconds, ours.seconds), _ratio(side.processor_seconds, ours.processor_seconds)
    return f"{row}; {_OURS} is {times:.2f} times as fast, in CPU time {processor_times:.2f}"


def _ratio(theirs: Sequence[float], ours: Sequence[float]) -> float:
    return statistics.median(one / other for one, other in zip(theirs, ours, strict=True))


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tokenmill bench extraction embeddings", description=__doc__)
    parser.add_argument("--model", required=True, help="folder of an embedding model with normalized vectors")
    parser.add_argument("--documents", type=Path, help="take the first texts of this file, as of `retrieval`")
    parser.add_argument("--texts", type=natural, default=400)
    parser.add_argument("--dtypes", type=_dtypes, default=["float32", "bfloat16"], help=f"of {','.join(Dtype)}")
    parser.add_argument("--turns", type=natural, default=5)
    parser.add_argument("--num-threads", type=natural, default=2)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(argv)


def _dtypes(listed: str) -> list[str]:
    dtypes = list(dict.fromkeys(names(listed)))
    if not set(dtypes) <= set(Dtype):
        raise argparse.ArgumentTypeError(f"{listed!r} is given; it must be of {', '.join(Dtype)}, with commas between.")
    return dtypes
