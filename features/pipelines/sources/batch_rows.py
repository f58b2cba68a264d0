"""The answers of one of a tenant's batches as the rows of a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import orjson
from sqlalchemy.orm import Session

from features.pipelines.preparing import SourceRow, row_id
from jobs import files
from jobs.batches import lifecycle as batches
from jobs.errors import InputError, NotFoundError
from jobs.lines.endpoints import LineKind, kind_of, paths_of
from jobs.lines.reading import iter_lines
from jobs.settings import MIB
from jobs.states import TERMINAL_BATCH_STATES, BatchState
from jobs.storage import Storage
from jobs.tables import Batch
from tokenmill.row_json import loads

_MAX_LINE_BYTES = 64 * MIB  # far above the size of any answer
_CHECKED_EVERY = 100  # rows


def require(session: Session, tenant_id: str, batch_id: str, *, place: str) -> Batch:
    """Return a tenant's batch with text answers. Raise NotFoundError or InputError that names the place."""
    try:
        batch = batches.get_batch(session, tenant_id, batch_id)
    except NotFoundError as error:
        raise NotFoundError(f"{place}: {error.message}", param=place) from None
    if kind_of(batch.endpoint) is not LineKind.GENERATE:
        raise InputError(
            f"{place}: batch {batch_id!r} is for {batch.endpoint}, whose answers are not texts; rows need answers of "
            f"{' and '.join(paths_of(LineKind.GENERATE))}. Give another batch.",
            param=place,
        )
    return batch


def answers_key(session: Session, tenant_id: str, batch_id: str, *, place: str) -> str:
    """Return the object key of an ended batch's answers. Raise InputError if there are none."""
    batch = require(session, tenant_id, batch_id, place=place)
    if BatchState(batch.state) not in TERMINAL_BATCH_STATES:
        raise InputError(
            f"{place}: batch {batch_id!r} is {batch.state}; its answers are complete once it has ended. Wait for that.",
            param=place,
        )
    file = None if batch.output_file_id is None else files.find_kept(session, tenant_id, batch.output_file_id)
    if file is None:
        why = "has no answers" if batch.output_file_id is None else "had answers, whose file was deleted or has expired"
        raise InputError(f"{place}: batch {batch_id!r} is {batch.state} and {why}. Give another batch.", param=place)
    return file.object_key


def rows(storage: Storage, key: str, moves: Callable[[], None] = lambda: None) -> Iterator[SourceRow]:
    """Yield a row for each answer, in the order of the batch's input; lines without an answer are in another file."""
    for number, line in enumerate(iter_lines(storage.iter_chunks(key), max_line_bytes=_MAX_LINE_BYTES), start=1):
        if number % _CHECKED_EVERY == 0:
            moves()
        assert line.content is not None, "answers are shorter"
        result = orjson.loads(line.content)
        text = _text_of(result)
        yield SourceRow(
            custom_id=row_id(number),
            values={"custom_id": result["custom_id"], "answer": text},
            previous={"text": text, "json": _object_of(text)},
        )


def _text_of(line: Mapping[str, Any]) -> str | None:
    """Return the text of the first choice; None if it has none, such as with tool calls."""
    choices = line["response"]["body"].get("choices") or [{}]
    text: str | None = choices[0].get("message", {}).get("content", choices[0].get("text"))
    return text


def _object_of(text: str | None) -> Any:
    try:
        value = loads((text or "").encode())
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
