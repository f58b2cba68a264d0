"""The files of a tenant's store that a step takes, and their rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

from features.pipelines import patterns
from features.pipelines.context import RunContext
from features.pipelines.external.store import ExternalStore, Found
from features.pipelines.preparing import SourceRow, row_id
from features.pipelines.rows.sources.files import ALLOWED, Format, SourceFile, format_of
from features.pipelines.rows.sources.reading import source_of
from features.pipelines.rows.sources.source import Source
from features.pipelines.spec import Step, Take
from jobs.errors import InputError

MAX_FILES = 10_000
"""Files of a step in one run; further ones in the order of keys are left for the next run."""
_LOOKED_UP_AT_ONCE = 1000

Untaken = Callable[[list[Found]], list[Found]]
"""Removes files whose current version a successful run has taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenFiles:
    """The files of a step's source."""

    files: list[Found]
    rows: Iterator[SourceRow]
    schema: Any = None
    """A pyarrow.Schema if the columns of the files have types."""
    notes: Sequence[str] = ()
    """How files are read that are not as their format usually is."""


def take_files(
    store: ExternalStore,
    context: RunContext,
    step: Step,
    untaken: Untaken,
    *,
    moves: Callable[[], None] = lambda: None,
) -> TakenFiles:
    """Return the files that match a step's source. Raise InputError if they do not form one table.

    `moves` is called periodically while files are listed, and before each file is opened; it may raise.
    """
    assert step.source.keys is not None, "a source of a store has keys"
    keys = [step.source.keys] if isinstance(step.source.keys, str) else step.source.keys
    patterns_of_run = [context.key(key, step=step) for key in keys]
    matches = (_matching(store, step, key, untaken, moves) for key in patterns_of_run)
    by_key = {each.key: each for files in matches for each in files}
    files = list(by_key.values()) if len(patterns_of_run) == 1 else sorted(by_key.values(), key=lambda each: each.key)
    description = ", ".join(patterns_of_run)
    if len(files) > MAX_FILES and step.source.take is Take.ALL:
        raise InputError(f"{description} matches more than {MAX_FILES:,} files; give keys that match fewer.")
    files = files[:MAX_FILES]
    if not files:
        return TakenFiles(files=[], rows=iter(()))
    source = _source(store, step, files, description, moves)
    rows = (SourceRow(custom_id=row_id(n), values=row.values) for n, row in enumerate(source.read(), start=1))
    return TakenFiles(files=files, rows=rows, schema=source.schema, notes=source.notes)


def _matching(store: ExternalStore, step: Step, key: str, untaken: Untaken, moves: Callable[[], None]) -> list[Found]:
    """Return the files that match one key, stopping above MAX_FILES."""
    files: list[Found] = []
    is_there = False
    for page in _pages(store, key, moves):
        is_there = is_there or bool(page)
        files += untaken(page) if step.source.take is Take.NEW else page
        if len(files) > MAX_FILES:
            break
    if not is_there and not isinstance(step.source.keys, str) and not patterns.is_pattern(key):
        raise InputError(
            f"There is no file {key!r}, which the source of step {step.name!r} names in its list. Put it there, or "
            "remove it from the list."
        )
    return files


def _pages(store: ExternalStore, pattern: str, moves: Callable[[], None]) -> Iterator[list[Found]]:
    page: list[Found] = []
    for number, each in enumerate(store.list(patterns.prefix_of(pattern)), start=1):
        if number % _LOOKED_UP_AT_ONCE == 0:  # counts all files, as a store may hold many that do not match
            moves()
        if patterns.matches(pattern, each.key) and not each.key.rpartition("/")[2].startswith(("_", ".")):
            _require_utf8(each.key)
            page.append(each)
        if len(page) >= _LOOKED_UP_AT_ONCE:
            yield page
            page = []
    yield page


def _require_utf8(key: str) -> None:
    """Raise InputError for a file name that neither the database nor JSON can hold."""
    try:
        key.encode()
    except UnicodeEncodeError:
        raise InputError(
            f"The name of the file {key!r} is not UTF-8; rename it, or give keys that do not match it."
        ) from None


def _source(store: ExternalStore, step: Step, taken: list[Found], pattern: str, moves: Callable[[], None]) -> Source:
    files = [_source_file(store, step, each, moves) for each in taken]
    kinds = sorted({file.format.value for file in files})
    if len(kinds) > 1:
        raise InputError(f"{pattern} matches files of several kinds: {', '.join(kinds)}. Give keys that match one.")
    return source_of(files, description=pattern)


def _source_file(store: ExternalStore, step: Step, file: Found, moves: Callable[[], None]) -> SourceFile:
    form = format_of(file.key) if step.source.format is None else Format(step.source.format.value)
    if form is None:
        raise InputError(
            f"{file.key!r} does not show its format: give it {ALLOWED}, or give the "
            f"source of step {step.name!r} a format."
        )

    def opened() -> BinaryIO:
        moves()  # all files are opened for their columns before the first row is read
        return cast(BinaryIO, store.open(file.key))

    return SourceFile(name=file.key, format=form, open=opened, identity=lambda: file.version)
