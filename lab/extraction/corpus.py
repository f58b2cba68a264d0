"""The cost of reading, cutting and indexing many small documents, extrapolated to a million larger ones.

Documents of one page are generated before the measurement, a fifth as PDFs, the others as texts, HTML and mails. Each
worker process reads its share as `prepare` does, in a confined child, and writes segments of a thousand documents,
which are merged at the end.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import random
import resource
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from benchmarks.arguments import natural
from features.documents.extraction.documents.document import Document
from features.documents.extraction.documents.process.document_reader import DocumentReader
from features.documents.extraction.errors import PassageError
from features.documents.extraction.passages.cutting import Cutter
from features.documents.extraction.passages.passage import Passage
from features.documents.extraction.passages.token_count import TokenCount
from features.documents.extraction.passes.excerpts import likely_tokens
from features.documents.extraction.retrieval.index import Index
from features.documents.extraction.retrieval.segment import Segment, build
from features.documents.extraction.retrieval.signature import EmbeddingSignature, Signature
from lab.extraction.alignment import generated_text
from lab.extraction.pdf_writer import PdfPage, Words, write_pdf

T = TypeVar("T")

_MAX_TOKENS, _OVERLAP = 256, 32
_PER_SEGMENT = 1000
_CHARACTERS = 1800
"""Of a document: a page."""
_SUFFIXES = ("pdf", "txt", "html", "eml", "md")
_QUESTIONS = 100
_LARGE = (1_000_000, 40)
"""Documents, and passages of each: the corpus to which unit costs are extrapolated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Costs of all documents together; seconds are CPU time."""

    num_documents: int
    num_passages: int
    wall_seconds: float
    """From the first document to the last segment, over all workers."""
    reading_seconds: float
    cutting_seconds: float
    indexing_seconds: float
    merging_seconds: float
    document_bytes: int
    """Stored size: texts with their positions, compressed."""
    index_bytes: int
    peak_mib: int
    """Of the largest worker."""
    milliseconds_a_question: float
    """By words."""
    milliseconds_by_both: float | None
    """By words and vectors; None if no passage has a vector."""
    vector_bytes: int


def main(argv: Sequence[str] | None = None) -> int:
    """Print the costs and their extrapolation to a million documents, or JSON."""
    parser = argparse.ArgumentParser(prog="tokenmill bench extraction corpus", description=__doc__)
    parser.add_argument("--documents", type=natural, default=50_000)
    parser.add_argument("--processes", type=natural, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dimensions", type=int, default=0, help="dimensions of random vectors; 0: none")
    parser.add_argument(
        "--tokenizer",
        type=_tokenizer,
        metavar="FILE",
        help="tokenizer that counts tokens; default: two bytes per token",
    )
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        costs = measure(
            Path(folder),
            arguments.documents,
            processes=arguments.processes,
            seed=arguments.seed,
            dimensions=arguments.dimensions,
            tokenizer=arguments.tokenizer,
        )
    if arguments.json:
        print(json.dumps(asdict(costs), indent=2))
        return 0
    _print(costs, processes=arguments.processes)
    return 0


def _tokenizer(file: str) -> bytes:
    """Return a tokenizer's file if it can be read. Raises ArgumentTypeError."""
    try:
        content = Path(file).read_bytes()
        TokenCount(content)
    except (OSError, PassageError) as error:
        raise argparse.ArgumentTypeError(f"{file}: {error}") from None
    return content


def measure(
    folder: Path,
    num_documents: int,
    *,
    processes: int,
    seed: int,
    dimensions: int = 0,
    tokenizer: bytes | None = None,
) -> Costs:
    """Make documents below a folder, index them, and search; vectors are random and cost only memory."""
    shares = [range(first, min(first + _PER_SEGMENT, num_documents)) for first in range(0, num_documents, _PER_SEGMENT)]
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        pool.starmap(_make, [(folder, share, seed) for share in shares], chunksize=1)
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        started = time.perf_counter()
        costs = pool.starmap(_index, [(folder, share, tokenizer) for share in shares], chunksize=1)
        wall = time.perf_counter() - started
    seconds: Counter[str] = Counter()
    for one in costs:
        seconds.update(one)
    parts = [Segment.from_bytes(path.read_bytes()) for path in sorted(folder.glob("*.segment"))]
    merging = time.process_time()
    merged = Segment.merged(parts)
    size = len(merged.to_bytes())
    merging = time.process_time() - merging
    embedded = _embedded(merged, dimensions, seed) if dimensions else None
    return Costs(
        num_documents=len(merged.documents),
        num_passages=merged.num_rows,
        wall_seconds=wall,
        reading_seconds=seconds["reading"],
        cutting_seconds=seconds["cutting"],
        indexing_seconds=seconds["indexing"],
        merging_seconds=merging,
        document_bytes=int(seconds["bytes"]),
        index_bytes=size,
        peak_mib=max(int(one["peak"]) for one in costs) >> 20,
        milliseconds_a_question=_search(Index([merged]), seed),
        milliseconds_by_both=None if embedded is None else _search(Index([embedded]), seed, dimensions=dimensions),
        vector_bytes=2 * dimensions * merged.num_rows,
    )


def _make(folder: Path, numbers: range, seed: int) -> None:
    for number in numbers:
        suffix = _SUFFIXES[number % len(_SUFFIXES)]
        content = make_document(suffix, random.Random(f"{seed} {number}"))
        (folder / f"{number:07}.{suffix}").write_bytes(content)


def make_document(suffix: str, draw: random.Random) -> bytes:
    """Return a page of text as a file in a format."""
    text = generated_text(draw, _CHARACTERS)
    lines = text.splitlines()
    match suffix:
        case "pdf":
            words = tuple(Words(x=56, y=60 + 12 * row, text=line) for row, line in enumerate(lines[:60]) if line)
            return write_pdf([PdfPage(words=words)])
        case "html":
            return "".join(["<h1>", lines[0], "</h1>", *(f"<p>{line}</p>" for line in lines[1:] if line)]).encode()
        case "eml":
            return f"From: a@example.org\nSubject: {lines[0]}\n\n{text}\n".encode()
        case "md":
            return f"# {lines[0]}\n\n{text}\n".encode()
    return text.encode()


def _index(folder: Path, numbers: range, tokenizer: bytes | None) -> dict[str, float]:
    """Read, cut and index a share of the documents; return the costs, in seconds and bytes."""
    count = likely_tokens if tokenizer is None else TokenCount(tokenizer)
    cutter = Cutter(count=count, max_tokens=_MAX_TOKENS, overlap_tokens=_OVERLAP)
    counted_by = "two bytes a token" if tokenizer is None else hashlib.sha256(tokenizer).hexdigest()
    signature = Signature(cutter=cutter.version, tokenizer_sha256=counted_by, language="english")
    before = _child_seconds()
    reading, stored = _timed(lambda: _read(folder, numbers))
    cutting, cut = _timed(lambda: [_cut(cutter, *one) for one in stored])
    indexing, segment = _timed(lambda: build(cut, signature).to_bytes())
    (folder / f"{numbers.start:07}.segment").write_bytes(segment)
    return {
        "reading": reading + _child_seconds() - before,
        "cutting": cutting,
        "indexing": indexing,
        "bytes": sum(len(content) for _, content in stored),
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def _read(folder: Path, numbers: range) -> list[tuple[str, bytes]]:
    """Return names and stored forms; one reader per share, so that its child's CPU time is known when it has ended."""
    documents: list[tuple[str, bytes]] = []
    with DocumentReader() as reader:
        for number in numbers:
            name = f"{number:07}.{_SUFFIXES[number % len(_SUFFIXES)]}"
            documents.append((name, reader.read_stored((folder / name).read_bytes(), name)))
    return documents


def _cut(cutter: Cutter, name: str, stored: bytes) -> tuple[str, str, list[Passage]]:
    document = Document.from_bytes(stored)
    return name, document.text, cutter.cut(document.text, document.headings)


def _timed(work: Callable[[], T]) -> tuple[float, T]:
    started = time.process_time()
    result = work()
    return time.process_time() - started, result


def _child_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _embedded(segment: Segment, dimensions: int, seed: int) -> Segment:
    """Return a segment with random vectors of length 1."""
    drawn = np.random.default_rng(seed).standard_normal((segment.num_rows, dimensions), np.float32)
    drawn /= np.linalg.norm(drawn, axis=1, keepdims=True)
    embedding = EmbeddingSignature(model_sha256="drawn", pooling="none", dimensions=dimensions)
    signature = replace(segment.signature, embedding=embedding)
    return replace(segment, signature=signature, vectors=drawn.astype(np.float16))


def _search(index: Index, seed: int, *, dimensions: int = 0) -> float:
    """Return the CPU time of a question of eight words in milliseconds, one question at a time."""
    draw = random.Random(f"{seed} questions")
    questions = [" ".join(generated_text(draw, 80).split()[:8]) for _ in range(_QUESTIONS)]
    vectors = np.random.default_rng(seed + 1).standard_normal((_QUESTIONS, 1, dimensions), np.float32)
    started = time.process_time()
    if dimensions:
        num_hits = sum(bool(index.by_both([one], own, 10)[0]) for one, own in zip(questions, vectors, strict=True))
    else:
        num_hits = sum(bool(index.by_words(question, 10)) for question in questions)
    assert num_hits, "questions use words of the documents"
    return 1000 * (time.process_time() - started) / _QUESTIONS


def _print(costs: Costs, *, processes: int) -> None:
    load = os.getloadavg()[0]
    print(f"{costs.num_documents} documents, {costs.num_passages} passages, {processes} processes, load {load:.1f}")
    print(f"{costs.wall_seconds:.0f} s of wall time, {costs.peak_mib} MiB in the largest process")
    documents, passages = _LARGE
    print(f"{'':<22}{'measured':>12}{'of one':>14}{f'{documents:,} × {passages}':>18}")
    for name, amount, count in (
        ("reading", costs.reading_seconds, costs.num_documents),
        ("cutting", costs.cutting_seconds, costs.num_passages),
        ("indexing", costs.indexing_seconds, costs.num_passages),
        ("merging", costs.merging_seconds, costs.num_passages),
    ):
        hours = amount / costs.num_passages * documents * passages / 3600
        print(f"{name:<22}{amount:>10.1f} s{1000 * amount / count:>11.2f} ms{hours:>10.1f} core-h")
    sizes = (("stored documents", costs.document_bytes), ("index", costs.index_bytes), ("vectors", costs.vector_bytes))
    for name, size in sizes:
        gigabytes = size / costs.num_passages * documents * passages / 1e9
        print(f"{name:<22}{size / 1e6:>9.1f} MB{size / costs.num_passages:>12.0f} B{gigabytes:>14.1f} GB")
    print(f"{'a question':<22}{costs.milliseconds_a_question:>9.1f} ms")
    if costs.milliseconds_by_both is not None:
        print(f"{'and by its vector':<22}{costs.milliseconds_by_both:>9.1f} ms")
