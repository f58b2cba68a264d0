"""Measure the speed of reading PDFs, and the memory that reading many leaves behind, on generated pages.

Rates are per CPU second, on one core: text with a box for every word; the same plus the text for prompts and the stored
form, which is all the preparation of a document. Memory is that of the process that forks a reader for each file, and
of its parent.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import psutil

from features.documents.extraction.documents.layout import layout
from features.documents.extraction.documents.limits import Limits
from features.documents.extraction.documents.parsing import parse
from features.documents.extraction.documents.process.document_reader import DocumentReader
from features.documents.extraction.errors import DocumentError
from lab.extraction.pages import make_pdf

_KINDS = 50
"""Number of small files that are read repeatedly: every tenth is truncated."""
_LOOKS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Pages per CPU second, the median of the turns."""

    parsed: float
    prepared: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Memory after a number of files, in MiB."""

    num_files: int
    warm: int
    parent: int


def main(argv: Sequence[str] | None = None) -> int:
    """Print rates and memory, as text or JSON."""
    parser = argparse.ArgumentParser(prog="tokenmill bench extraction documents", description=__doc__)
    parser.add_argument("--pages", type=int, default=300)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--files", type=int, default=10_000, help="small files, each read in its own process")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args(argv)
    rates = measure_rates(num_pages=arguments.pages, turns=arguments.turns, seed=arguments.seed)
    memory = measure_memory(num_files=arguments.files, seed=arguments.seed)
    if arguments.json:
        print(json.dumps({"rates": asdict(rates), "memory": [asdict(look) for look in memory]}, indent=2))
        return 0
    load = os.getloadavg()[0]
    print(f"{arguments.pages} pages, median of {arguments.turns} turns, load {load:.1f}")
    print(f"text and boxes           {rates.parsed:6.0f} pages per CPU second")
    print(f"with layout and storing  {rates.prepared:6.0f} pages per CPU second")
    print(f"{'files':>7}{'warm MiB':>11}{'parent MiB':>12}")
    for look in memory:
        print(f"{look.num_files:>7}{look.warm:>11}{look.parent:>12}")
    return 0


def measure_rates(*, num_pages: int, turns: int, seed: int) -> Rates:
    """Read one PDF repeatedly, alternating between the two ways."""
    content = make_pdf(num_pages, seed)

    def parsed() -> None:
        parse(content, "made.pdf", Limits())

    def prepared() -> None:
        document = parse(content, "made.pdf", Limits())
        layout(document)
        document.to_bytes()

    seconds = [(_processor_seconds(parsed), _processor_seconds(prepared)) for _ in range(turns)]
    first, second = (statistics.median(each) for each in zip(*seconds, strict=True))
    return Rates(parsed=num_pages / first, prepared=num_pages / second)


def measure_memory(*, num_files: int, seed: int) -> list[Memory]:
    """Read small files, each in a process that another one forks; return the memory of that one and of this one."""
    files = [make_pdf(1 + kind % 5, seed + kind)[: 900 if kind % 10 == 9 else None] for kind in range(_KINDS)]
    parent, looks = psutil.Process(), []
    with DocumentReader() as reader:
        reader.read_stored(files[0], "made.pdf")
        warm = psutil.Process(reader.process_id)
        for number in range(1, num_files + 1):
            try:
                reader.read_stored(files[number % _KINDS], "made.pdf")
            except DocumentError:
                assert number % 10 == 9, "only truncated files cannot be read"
            if number % max(num_files // _LOOKS, 1) == 0:
                rss = parent.memory_info().rss
                looks.append(Memory(num_files=number, warm=warm.memory_info().rss >> 20, parent=rss >> 20))
    return looks


def _processor_seconds(work: Callable[[], None]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started
