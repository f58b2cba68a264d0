"""Extract documents, some of them broken, while every process is killed repeatedly; report the outcome of each.

Expected: a record for each document, in order; the broken ones with their codes, the others with fields; and the same
number of tokens in the records as in the ledger.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.arguments import fraction, natural
from examples.make_papers import make_papers
from lab.extraction.killed_runs import RUNS, Billed, KilledRun

_BROKEN = (
    ("pdf", b"%PDF-1.7\n1 0 obj\n", "truncated"),
    ("txt", b"", "empty"),
    ("doc", bytes.fromhex("d0cf11e0a1b11ae1") + bytes(600), "unsupported_format"),
    ("txt", bytes(range(3)) * 100, "not_text"),
)
"""Suffixes, contents and codes."""
_PAUSE_SECONDS = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of a run that was killed."""

    run: str
    num_documents: int
    num_broken: int
    killed_at: tuple[int, ...]
    """Completed units of work at each kill."""
    num_once: int
    """Documents that have one record, at their place in the order."""
    num_as_expected: int
    """Of those: with fields, or broken with the expected code."""
    codes: Mapping[str, int]
    input_tokens: int
    output_tokens: int
    """Of the records."""
    billed: Billed | None
    seconds: float

    @property
    def is_whole(self) -> bool:
        """Return whether every document came out once as expected, and was billed once."""
        if self.billed is None or self.billed.findings:
            return False
        is_billed = (self.billed.input_tokens, self.billed.output_tokens) == (self.input_tokens, self.output_tokens)
        return is_billed and self.num_once == self.num_as_expected == self.num_documents


def main(argv: Sequence[str] | None = None) -> int:
    """Print the outcome, or JSON; return 1 if anything is missing, repeated, or billed differently."""
    parser = argparse.ArgumentParser(prog="tokenmill bench extraction kills", description=__doc__)
    parser.add_argument("--documents", type=natural, default=2000)
    parser.add_argument("--broken", type=fraction, default=0.05, help="share of the documents that cannot be read")
    parser.add_argument("--kills", type=natural, default=5)
    parser.add_argument(
        "--run", choices=[each.name for each in RUNS], action="append", help="default: both, one after the other"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    arguments, options = parser.parse_known_args(argv)  # others are passed to `extract` or `up`, such as --model
    outcomes = []
    for kind in RUNS:
        if arguments.run is None or kind.name in arguments.run:
            with tempfile.TemporaryDirectory(prefix="tokenmill-") as folder:
                expected = make_files(
                    Path(folder) / "in", arguments.documents, broken=arguments.broken, seed=arguments.seed
                )
                outcomes.append(
                    killed(kind(Path(folder), options), expected, kills=arguments.kills, seed=arguments.seed)
                )
    if arguments.json:
        print(json.dumps([asdict(each) for each in outcomes], indent=2))
    else:
        for each in outcomes:
            _print(each)
    return 0 if all(each.is_whole for each in outcomes) else 1


def make_files(folder: Path, count: int, *, broken: float, seed: int) -> dict[str, str | None]:
    """Write documents into a new folder; return the code with which each is expected to fail, None for fields."""
    folder.mkdir()
    draw = random.Random(f"kills/{seed}")
    places = set(draw.sample(range(count), round(broken * count)))
    papers = make_papers(count - len(places), seed=seed)
    expected: dict[str, str | None] = {}
    for number in range(count):
        if number in places:
            suffix, content, code = draw.choice(_BROKEN)
        else:
            paper = next(papers)
            suffix, content, code = paper.name.rpartition(".")[2], paper.content, None
        name = f"{number:06d}.{suffix}"
        (folder / name).write_bytes(content)
        expected[name] = code
    return expected


def killed(run: KilledRun, expected: Mapping[str, str | None], *, kills: int, seed: int) -> Outcome:
    """Run to the end with `kills` kills at moments drawn from the seed; return the outcome."""
    draw = random.Random(f"kills/{seed}/{run.name}")
    work = len(expected) * run.units_a_document
    targets = sorted(draw.randrange(1, work) for _ in range(kills))
    started, killed_at = time.monotonic(), []
    run.start()
    try:
        for target in targets:
            killed_at.append(_until(run, target))
            run.kill()
            run.start()
        _until(run, None)
        return _outcome(run, expected, killed_at, seconds=time.monotonic() - started)
    finally:
        run.kill()


def _until(run: KilledRun, target: int | None) -> int:
    """Wait until `target` units are done, or all; return the number of completed units."""
    while True:
        completed = run.progress()
        if target is not None and completed >= target:
            return completed
        if run.has_ended():
            return completed
        time.sleep(_PAUSE_SECONDS)


def _outcome(run: KilledRun, expected: Mapping[str, str | None], killed_at: list[int], *, seconds: float) -> Outcome:
    records = run.records()
    names = [Path(record["document"]).name for record in records]
    times = Counter(names)
    once = [
        record
        for name, actual, record in zip(expected, names, records, strict=False)
        if name == actual and times[name] == 1
    ]
    codes = [_code(record) for record in once]
    return Outcome(
        run=run.name,
        num_documents=len(expected),
        num_broken=sum(code is not None for code in expected.values()),
        killed_at=tuple(killed_at),
        num_once=len(once),
        num_as_expected=sum(
            code == expected[Path(record["document"]).name] for code, record in zip(codes, once, strict=True)
        ),
        codes=dict(Counter(code for code in codes if code is not None)),  # asdict cannot copy a Counter
        input_tokens=sum(record["usage"]["input_tokens"] for record in records),
        output_tokens=sum(record["usage"]["output_tokens"] for record in records),
        billed=run.billed(),
        seconds=seconds,
    )


def _code(record: Mapping[str, Any]) -> str | None:
    return None if record["error"] is None else str(record["error"]["code"])


def _print(outcome: Outcome) -> None:
    codes = ", ".join(f"{code} {count}" for code, count in sorted(outcome.codes.items())) or "none"
    billed = "unknown"
    if outcome.billed is not None:
        billed = f"{outcome.billed.input_tokens:,} in, {outcome.billed.output_tokens:,} out"
    rows = {
        "documents": f"{outcome.num_documents:,}, {outcome.num_broken:,} of them broken",
        "killed": f"{len(outcome.killed_at)} times, at {', '.join(map(str, outcome.killed_at))} units of work",
        "with one record": f"{outcome.num_once:,}",
        "of them as expected": f"{outcome.num_as_expected:,}",
        "codes": codes,
        "tokens of the records": f"{outcome.input_tokens:,} in, {outcome.output_tokens:,} out",
        "tokens of the ledger": billed,
        "the audit finds": "nothing" if outcome.billed and not outcome.billed.findings else str(outcome.billed),
        "seconds": f"{outcome.seconds:.0f}, at a load of {os.getloadavg()[0]:.1f}",
    }
    print(f"{outcome.run}")
    for name, value in rows.items():
        print(f"  {name:24}{value}")
