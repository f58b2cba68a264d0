"""Terminal output of an extraction: progress of uploads, sample fields, summary."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from cli.extracting.tally import Tally
from cli.line_tally import SOME_LINES_FAILED, by_code
from cli.service.options import say
from features.documents.extraction.passes.withholding import NOT_IN_DOCUMENT
from jobs.counted import counted

_MAX_SHOWN = 3
_MARKS = {"exact": "", "normalised": "", "fuzzy": "about", "none": "not found"}


@contextmanager
def upload_progress(total: int) -> Iterator[Callable[[], None]]:
    """Show how many of `total` files are uploaded; the yielded function counts one."""
    if not sys.stderr.isatty():
        yield lambda: None
        return
    columns = (TextColumn("uploading"), BarColumn(bar_width=None), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, expand=True) as progress:
        task = progress.add_task("uploading", total=total)
        yield lambda: progress.advance(task)


def noting(records: Iterator[dict[str, Any]], shown: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield records unchanged, and collect the first ones with fields in `shown`."""
    for one in records:
        if one["error"] is None and len(shown) < _MAX_SHOWN:
            shown.append(one)
        yield one


def print_prompt(lines: Path) -> None:
    """Print the messages of a file's first line."""
    with lines.open("rb") as file:
        for message in orjson.loads(file.readline())["body"]["messages"]:
            print(f"# {message['role']}:\n{message['content']}\n")


def print_examples(records: Sequence[Mapping[str, Any]]) -> None:
    """Print the fields of the first documents; nothing in a pipe."""
    if not sys.stdout.isatty():
        return
    table = Table("document", "field", "value", "score", "where", box=None, pad_edge=False, collapse_padding=True)
    for record in records:
        for number, each in enumerate(record["evidence"]):
            name = Path(record["document"]).name if number == 0 else ""
            is_last = number == len(record["evidence"]) - 1
            table.add_row(name, each["path"], _shown(each), _score(each), where(each), end_section=is_last)
    Console().print(table, markup=False)


def summary(tally: Tally) -> list[str]:
    """Return the lines of the summary."""
    num_failed = tally.codes.total()
    lines = [f"{tally.num_done:,} of {counted(tally.num_done + num_failed, 'document')} done"]
    if num_failed:
        lines.append(f"{num_failed:,} failed: {by_code(tally.codes)}")
    if tally.num_noted:
        lines.append(
            f"{tally.num_noted:,} of them not read or asked completely, or uncertain: see `notes` of their records"
        )
    if num_values := tally.groundings.total():
        num_grounded = num_values - tally.groundings["none"]
        lines.append(
            f"{counted(num_values, 'value')}, {num_grounded / num_values:.1%} of them found in the document; "
            f"{counted(tally.num_to_review, 'answer')} to review (review: true)"
        )
    if tally.num_withheld:
        lines.append(
            f"{counted(tally.num_withheld, 'answer')} not in the document: set to null, with the note {NOT_IN_DOCUMENT}"
        )
    if num_input := tally.usage["input_tokens"]:
        lines.append(
            f"tokens {num_input:,} in, {tally.usage['cached_tokens'] / num_input:.1%} of them from the prefix cache; "
            f"{tally.usage['output_tokens']:,} out"
        )
    return lines


def _shown(evidence: Mapping[str, Any]) -> str:
    if "answer" in evidence:
        return f"– (answered: {evidence['answer']})"
    return "–" if evidence["value"] is None else str(evidence["value"])


def _score(evidence: Mapping[str, Any]) -> str:
    return f"{evidence['score']:.2f}" + (" review" if evidence["review"] else "")


def where(evidence: Mapping[str, Any]) -> str:
    """Return the place of a value in words; empty for null and for an empty list."""
    if "answer" in evidence:
        return "nowhere"
    if evidence["value"] in (None, []):
        return ""
    if "status" not in evidence["features"]:
        return "concluded"
    if not evidence["spans"]:
        return "not found"
    span = evidence["spans"][0]
    document = f"{span['document']}," if "document" in span else ""  # of an index
    page = "" if span["page"] is None else f"page {span['page'] + 1},"
    return " ".join(filter(None, [_MARKS[evidence["grounding"]], document, page, f"character {span['start']:,}"]))


def end(tally: Tally, *, fail_on_errors: bool) -> None:
    """Print the summary, and exit with the matching status."""

    for line in summary(tally):
        say(line)
    if tally.codes and fail_on_errors:
        raise typer.Exit(SOME_LINES_FAILED)
    if tally.codes and not tally.num_done:
        raise typer.Exit(1)
