"""Measure how well BM25, vectors and both together retrieve the relevant documents of a given file.

Each line of the file is a document or a query, `{"kind": "document", "id", "text"}` or `{"kind": "query", "id", "text",
"relevant": [ids]}`. A document is one passage.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.arguments import natural
from engine import Embedder
from engine.pooling.encoders.dtypes import Dtype
from features.documents.extraction.passages.passage import Passage
from features.documents.extraction.retrieval.index import Index
from features.documents.extraction.retrieval.ranking import Hit
from features.documents.extraction.retrieval.segment import build
from features.documents.extraction.retrieval.signature import EmbeddingSignature, Signature

Floats = NDArray[np.float32]

_TOP_K = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A question, and the documents that answer it."""

    text: str
    relevant: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Collection:
    """Documents by their ids, and queries."""

    documents: Mapping[str, str]
    queries: Sequence[Query]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Results of one ranking method, means over the queries."""

    way: str
    ndcg_at_10: float
    recall_at_10: float
    recall_at_100: float
    milliseconds: float
    """Wall time per query, without the embedding."""


def main(argv: Sequence[str] | None = None) -> int:
    """Print one row for each ranking method, or JSON."""
    parser = argparse.ArgumentParser(prog="tokenmill bench extraction retrieval", description=__doc__)
    parser.add_argument("path", type=Path, help="a JSON Lines file of documents and queries, gzipped or not")
    parser.add_argument("--model", help="folder of an encoder, for vectors too")
    parser.add_argument(
        "--dtype", choices=("auto", *Dtype), default="auto", help="in which the encoder computes [default: float32]"
    )
    parser.add_argument("--language", default="english")
    parser.add_argument("--num-threads", type=natural, default=1)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args(argv)
    collection = read(arguments.path)
    torch.set_num_threads(arguments.num_threads)
    embedder = None if arguments.model is None else Embedder(arguments.model, dtype=arguments.dtype)
    outcomes = measure(collection, embedder=embedder, language=arguments.language)
    if arguments.json:
        print(json.dumps([asdict(each) for each in outcomes], indent=2))
        return 0
    print(f"{len(collection.documents)} documents, {len(collection.queries)} queries")
    print(f"{'by':<10}{'nDCG@10':>9}{'R@10':>8}{'R@100':>8}{'ms a query':>12}")
    for each in outcomes:
        print(
            f"{each.way:<10}{each.ndcg_at_10:>9.4f}{each.recall_at_10:>8.4f}{each.recall_at_100:>8.4f}{each.milliseconds:>12.2f}"
        )
    return 0


def read(path: Path) -> Collection:
    """Read a collection from a file."""
    documents: dict[str, str] = {}
    queries: list[Query] = []
    for line in _lines(path):
        if line["kind"] == "document":
            documents[line["id"]] = line["text"]
        else:
            queries.append(Query(text=line["text"], relevant=frozenset(line["relevant"])))
    return Collection(documents=documents, queries=[query for query in queries if query.relevant])


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        yield from map(json.loads, file)


def measure(collection: Collection, *, embedder: Embedder | None, language: str) -> list[Outcome]:
    """Return the results by words, and, with a model, by vectors and by both."""
    texts, questions = list(collection.documents.values()), [query.text for query in collection.queries]
    if embedder is None:
        index = index_of(collection, language=language)
        return [_outcome("words", collection, index, lambda: [index.by_words(one, _TOP_K) for one in questions])]
    embedding, (of_texts, of_questions) = _embedded(embedder, [texts, questions])
    index = index_of(collection, language=language, embedding=embedding, vectors=of_texts)
    ways = {
        "words": lambda: [index.by_words(one, _TOP_K) for one in questions],
        "vectors": lambda: index.by_vectors(of_questions, _TOP_K),
        "both": lambda: index.by_both(questions, of_questions, _TOP_K),
    }
    return [_outcome(way, collection, index, rank) for way, rank in ways.items()]


def index_of(
    collection: Collection,
    *,
    language: str,
    embedding: EmbeddingSignature | None = None,
    vectors: Floats | None = None,
) -> Index:
    """Build an index in which every document is one passage."""
    signature = Signature(cutter="whole", tokenizer_sha256="", language=language, embedding=embedding)
    documents = (
        (name, text, [Passage(start=0, end=len(text), num_tokens=0)]) for name, text in collection.documents.items()
    )
    return Index([build(documents, signature, vectors=vectors)])


def ndcg(relevant: frozenset[str], names: Sequence[str], depth: int = 10) -> float:
    """Return the discounted gain of `names` relative to the best possible; every relevant one gains 1."""
    gained = sum(1 / math.log2(place + 2) for place, name in enumerate(names[:depth]) if name in relevant)
    return gained / sum(1 / math.log2(place + 2) for place in range(min(depth, len(relevant))))


def _outcome(way: str, collection: Collection, index: Index, rank: Callable[[], list[list[Hit]]]) -> Outcome:
    started = time.perf_counter()
    rankings = rank()
    seconds = time.perf_counter() - started
    results = [[index.place(hit.row).document for hit in ranking] for ranking in rankings]
    judged = list(zip((query.relevant for query in collection.queries), results, strict=True))
    return Outcome(
        way=way,
        ndcg_at_10=statistics.mean(ndcg(relevant, names) for relevant, names in judged),
        recall_at_10=_recall(judged, 10),
        recall_at_100=_recall(judged, _TOP_K),
        milliseconds=1000 * seconds / len(judged),
    )


def _recall(judged: Sequence[tuple[frozenset[str], Sequence[str]]], depth: int) -> float:
    """Return the mean share of relevant documents among the first ones."""
    return statistics.mean(len(relevant & set(names[:depth])) / len(relevant) for relevant, names in judged)


def _embedded(embedder: Embedder, groups: Sequence[list[str]]) -> tuple[EmbeddingSignature, list[Floats]]:
    batches = [embedder.embed(texts) for texts in groups]
    print(f"{sum(batches[0].truncated)} documents are longer than {embedder.max_tokens} tokens", file=sys.stderr)
    signature = EmbeddingSignature(
        model_sha256="of the model",
        pooling=embedder.pooling,
        dimensions=embedder.dimensions,
        computed_in=embedder.dtype,
    )
    return signature, [each.vectors for each in batches]
