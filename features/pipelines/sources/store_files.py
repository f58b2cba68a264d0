"""Which files of a tenant's store a step takes, and their rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

from features.pipelines import patterns
from features.pipelines.context import RunContext
from features.pipelines.external.store import ExternalStore, Found
from features.pipelines.preparing import SourceRow, row_id
from features.pipelines.rows.sources.files import Format, SourceFile, format_of
from features.pipelines.rows.sources.reading import source_of
from features.pipelines.rows.sources.source import Source
from features.pipelines.spec import Step, Take
from jobs.errors import InputError

MAX_FILES = 10_000
"""Of a step in one run: those that come after them in the order of keys are the next run's."""
_LOOKED_UP_AT_ONCE = 1000

Untaken = Callable[[list[Found]], list[Found]]
"""Leaves out files that a successful run took in as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenFiles:
    """The files of a step's source."""

    files: list[Found]
    rows: Iterator[SourceRow]
    schema: Any = None
    """A pyarrow.Schema, where the columns of the files have types."""


def take_files(
    store: ExternalStore,
    context: RunContext,
    step: Step,
    untaken: Untaken,
    *,
    moves: Callable[[], None] = lambda: None,
) -> TakenFiles:
    """Find the files that a step's source means. Raises InputError where they are no one table.

    `moves` is called now and then while files are listed, and before each that is opened; it may raise.
    """
    assert step.source.keys is not None, "a source of a store has keys"
    keys = [step.source.keys] if isinstance(step.source.keys, str) else step.source.keys
    wanted = [context.key(key, step=step) for key in keys]
    meant = (_meant(store, step, key, untaken, moves) for key in wanted)
    by_key = {each.key: each for files in meant for each in files}
    found = list(by_key.values()) if len(wanted) == 1 else sorted(by_key.values(), key=lambda each: each.key)
    description = ", ".join(wanted)
    if len(found) > MAX_FILES and step.source.take is Take.ALL:
        raise InputError(f"{description} means more than {MAX_FILES:,} files; give keys that mean fewer.")
    found = found[:MAX_FILES]
    if not found:
        return TakenFiles(files=[], rows=iter(()))
    source = _source(store, step, found, description, moves)
    rows = (SourceRow(custom_id=row_id(n), values=row.values) for n, row in enumerate(source.read(), start=1))
    return TakenFiles(files=found, rows=rows, schema=source.schema)


def _meant(store: ExternalStore, step: Step, key: str, untaken: Untaken, moves: Callable[[], None]) -> list[Found]:
    """Return the files that one key means, or so many that more of them are not taken."""
    found: list[Found] = []
    is_there = False
    for page in _pages(store, key, moves):
        is_there = is_there or bool(page)
        found += untaken(page) if step.source.take is Take.NEW else page
        if len(found) > MAX_FILES:
            break
    if not is_there and not isinstance(step.source.keys, str) and not patterns.is_pattern(key):
        raise InputError(
            f"There is no file {key!r}, which the source of step {step.name!r} names in its list. Put it there, or "
            "take it from the list."
        )
    return found


def _pages(store: ExternalStore, pattern: str, moves: Callable[[], None]) -> Iterator[list[Found]]:
    page: list[Found] = []
    for number, each in enumerate(store.list(patterns.prefix_of(pattern)), start=1):
        if number % _LOOKED_UP_AT_ONCE == 0:  # whether they match or not: a store may hold many others
            moves()
        if patterns.matches(pattern, each.key) and not each.key.rpartition("/")[2].startswith(("_", ".")):
            _require_utf8(each.key)
            page.append(each)
        if len(page) >= _LOOKED_UP_AT_ONCE:
            yield page
            page = []
    yield page


def _require_utf8(key: str) -> None:
    """Raise InputError for a file of a folder whose name no database and no JSON can hold."""
    try:
        key.encode()
    except UnicodeEncodeError:
        raise InputError(
            f"The name of the file {key!r} is not UTF-8; rename it, or give keys that leave it out."
        ) from None


def _source(store: ExternalStore, step: Step, found: list[Found], pattern: str, moves: Callable[[], None]) -> Source:
    files = [_source_file(store, step, each, moves) for each in found]
    kinds = sorted({file.format.value for file in files})
    if len(kinds) > 1:
        raise InputError(f"{pattern} means files of several kinds: {', '.join(kinds)}. Give keys that mean one.")
    return source_of(files, description=pattern)


def _source_file(store: ExternalStore, step: Step, found: Found, moves: Callable[[], None]) -> SourceFile:
    form = format_of(found.key) if step.source.format is None else Format(step.source.format.value)
    if form is None:
        raise InputError(
            f"{found.key!r} does not say what it holds: give it a name that ends in .jsonl, .csv or .parquet, or give "
            f"the source of step {step.name!r} a format."
        )

    def opened() -> BinaryIO:
        moves()  # all are opened for their columns before a row is read
        return cast(BinaryIO, store.open(found.key))

    return SourceFile(name=found.key, format=form, open=opened, identity=lambda: found.version)
