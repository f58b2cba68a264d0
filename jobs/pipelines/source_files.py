"""Which files of a tenant's store a step takes, and their rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO, cast

from jobs.errors import InputError
from jobs.pipelines import patterns
from jobs.pipelines.context import RunContext
from jobs.pipelines.external import ExternalStore, Found
from jobs.pipelines.spec import Step, Take
from pipelines.sources.files import Format, SourceFile, format_of
from pipelines.sources.reading import source_of
from pipelines.sources.source import Row

MAX_FILES = 10_000
"""Of a step in one run: those that come after them in the order of keys are the next run's."""
_LOOKED_UP_AT_ONCE = 1000

Untaken = Callable[[list[Found]], list[Found]]
"""Leaves out files that a successful run took in as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenFiles:
    """The files of a step's source."""

    files: list[Found]
    rows: Iterator[Row]


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
    pattern = context.key(step.source.keys, step=step)
    found: list[Found] = []
    for page in _pages(store, pattern, moves):
        found += untaken(page) if step.source.take is Take.NEW else page
        if len(found) > MAX_FILES:
            if step.source.take is Take.ALL:
                raise InputError(f"{pattern} means more than {MAX_FILES:,} files; give keys that mean fewer.")
            found = found[:MAX_FILES]
            break
    if not found:
        return TakenFiles(files=[], rows=iter(()))
    return TakenFiles(files=found, rows=_rows(store, step, found, pattern, moves))


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


def _rows(
    store: ExternalStore, step: Step, found: list[Found], pattern: str, moves: Callable[[], None]
) -> Iterator[Row]:
    files = [_source_file(store, step, each, moves) for each in found]
    kinds = sorted({file.format.value for file in files})
    if len(kinds) > 1:
        raise InputError(f"{pattern} means files of several kinds: {', '.join(kinds)}. Give keys that mean one.")
    return source_of(files, description=pattern).read()


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
