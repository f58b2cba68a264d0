"""Streams one part of a file from the socket into the object store, with its checksum and its line counts.

Memory is bounded as in `api.uploads`; the row of the object is created afterwards.
"""

from __future__ import annotations

import hashlib
from contextlib import ExitStack
from typing import Any

from fastapi import Request

from api.multipart import UploadReader
from api.store import RequestStore
from api.uploads import FORM_OVERHEAD_BYTES, announced_bytes, content_type_of, receive
from jobs.errors import InputError, TooLargeError
from jobs.settings import Settings
from jobs.storage import Storage
from jobs.uploads.part_counts import PartCounter
from jobs.uploads.records import MAX_PART_BYTES, NewPart

PART_SCHEMA: dict[str, Any] = {  # for /openapi.json, as the form is parsed by hand
    "required": True,
    "content": {
        "multipart/form-data": {
            "schema": {
                "type": "object",
                "required": ["data"],
                "additionalProperties": False,
                "properties": {"data": {"type": "string", "format": "binary"}},
            }
        }
    },
}


class _Part:
    """One part in upload: a `Receiver` of its form."""

    def __init__(self, content_type: str, object_key: str, *, storage: Storage, settings: Settings) -> None:
        self._object_key = object_key
        self._stack = ExitStack()
        self._reader = UploadReader(content_type, self, checks={}, file="data")
        self._counter = PartCounter(default_max_tokens=settings.default_max_tokens)
        self._digest = hashlib.md5(usedforsecurity=False)
        self._size_bytes = 0
        self._writer = self._stack.enter_context(storage.writer(object_key))

    def feed(self, piece: bytes) -> None:
        self._reader.feed(piece)

    def begin(self, filename: str) -> None:
        """The object is open."""

    def write(self, data: bytes) -> None:
        """Write content of the part from the form's reader. Raise TooLargeError at the first byte too many."""
        self._size_bytes += len(data)
        if self._size_bytes > MAX_PART_BYTES:
            raise _too_large(self._size_bytes)
        self._writer.write(data)
        self._counter.feed(data)
        self._digest.update(data)

    def finish(self) -> NewPart:
        """Commit the object. Raise InputError if the form is incomplete or the part is empty."""
        self._reader.finish()
        if not self._size_bytes:
            raise InputError("'data' is empty. Send at least one byte.", param="data", code="invalid_value")
        self._stack.close()
        return NewPart(
            object_key=self._object_key,
            size_bytes=self._size_bytes,
            md5=self._digest.hexdigest(),
            count=self._counter.finish(),
        )

    def abort(self, error: BaseException) -> None:
        """Discard the object."""
        self._stack.__exit__(type(error), error, error.__traceback__)


async def receive_part(request: Request, object_key: str, *, store: RequestStore, settings: Settings) -> NewPart:
    """Receive the whole body of `request`; raise as `api.uploads.receive_upload`."""
    announced = announced_bytes(request)
    if announced > MAX_PART_BYTES + FORM_OVERHEAD_BYTES:
        raise _too_large(announced)
    part = _Part(content_type_of(request), object_key, storage=store.storage, settings=settings)
    return await receive(request, part, store=store)


def _too_large(size_bytes: int) -> TooLargeError:
    return TooLargeError(
        f"The part has {size_bytes:,} bytes or more; one part may have {MAX_PART_BYTES:,}. Send more and smaller ones.",
        param="data",
        code="part_too_large",
    )
