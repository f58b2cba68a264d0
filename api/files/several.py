"""Receives many small files in one request: a form with `purpose` and a part `files` for each.

As with a single file, the rows are created afterwards: all of them, or none.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any

from fastapi import Request

from api.multipart import UploadReader
from api.store import RequestStore
from api.uploads import FormField, announced_bytes, content_type_of, receive, too_large
from jobs.errors import InputError, ServiceError, TooLargeError
from jobs.files import NewFile, Purpose
from jobs.settings import MIB, Settings
from jobs.storage import ObjectWriter, Storage

MAX_FILES = 500
"""Files of one request: their rows are written in one transaction, under the lock of the tenant's files."""
MAX_BYTES = 64 * MIB
"""Bytes of one request's files together; larger files are uploaded one by one, or in parts."""
_PART_OVERHEAD_BYTES = 2048
"""Of a part's boundary and headers, and its share of the form's fields."""

_PURPOSE = FormField(
    schema={"type": "string", "enum": [str(Purpose.USER_DATA)]},
    is_allowed=lambda value: value == Purpose.USER_DATA,
    wish=f"Allowed is {Purpose.USER_DATA}; upload inputs of batches one by one",
)
SEVERAL_SCHEMA: dict[str, Any] = {  # for /openapi.json, as the form is parsed by hand
    "required": True,
    "content": {
        "multipart/form-data": {
            "schema": {
                "type": "object",
                "required": ["purpose", "files"],
                "additionalProperties": False,
                "properties": {
                    "purpose": _PURPOSE.schema,
                    "files": {
                        "type": "array",
                        "minItems": 1,
                        "maxItems": MAX_FILES,
                        "items": {"type": "string", "format": "binary"},
                    },
                },
            }
        }
    },
}


class _Files:
    """The files in upload: a `Receiver` of their form."""

    def __init__(self, content_type: str, new_key: Callable[[], str], *, storage: Storage, max_file_bytes: int) -> None:
        self._new_key, self._storage, self._max_file_bytes = new_key, storage, max_file_bytes
        self._reader = UploadReader(
            content_type, self, checks={"purpose": _PURPOSE.check}, file="files", max_files=MAX_FILES
        )
        self._stack = ExitStack()
        self._writer: ObjectWriter | None = None
        self._names: list[str] = []
        self._keys: list[str] = []
        self._sizes: list[int] = []
        self._size_bytes = 0

    def feed(self, piece: bytes) -> None:
        self._reader.feed(piece)

    def begin(self, filename: str) -> None:
        self._stack.close()  # the object before it
        self._names.append(filename)
        self._keys.append(self._new_key())
        self._sizes.append(0)
        self._writer = self._stack.enter_context(self._storage.writer(self._keys[-1]))

    def write(self, data: bytes) -> None:
        assert self._writer is not None, "a file has begun"
        self._size_bytes += len(data)
        if self._size_bytes > MAX_BYTES:
            raise _too_large(self._size_bytes)
        self._sizes[-1] += len(data)
        if self._sizes[-1] > self._max_file_bytes:
            raise too_large(self._sizes[-1], self._max_file_bytes, param="files")
        self._writer.write(data)

    def finish(self) -> list[NewFile]:
        """Check the form and commit the last object. Raise InputError if the form is incomplete."""
        form = self._reader.finish()
        if "purpose" not in form.fields:
            raise InputError(
                "Missing required parameter: 'purpose'.", param="purpose", code="missing_required_parameter"
            )
        self._stack.close()
        return [
            NewFile(
                object_key=key,
                filename=name,
                purpose=Purpose.USER_DATA,
                expires_after_seconds=None,
                size_bytes=size_bytes,
                estimate=None,
            )
            for key, name, size_bytes in zip(self._keys, self._names, self._sizes, strict=True)
        ]

    def abort(self, error: BaseException) -> None:
        """Discard all objects."""
        self._stack.__exit__(type(error), error, error.__traceback__)
        with suppress(ServiceError):  # the purge deletes what is left
            for key in self._keys:
                self._storage.delete(key)


async def receive_several(
    request: Request, new_key: Callable[[], str], *, store: RequestStore, settings: Settings
) -> list[NewFile]:
    """Receive the whole body of `request`. Raise InputError or TooLargeError as soon as the bytes show it."""
    announced = announced_bytes(request)
    if announced > MAX_BYTES + MAX_FILES * _PART_OVERHEAD_BYTES:
        raise _too_large(announced)
    files = _Files(content_type_of(request), new_key, storage=store.storage, max_file_bytes=settings.max_file_bytes)
    return await receive(request, files, store=store)


def _too_large(size_bytes: int) -> TooLargeError:
    return TooLargeError(
        f"The files have {size_bytes:,} bytes or more together; one request may have {MAX_BYTES:,}. Send fewer, or "
        "large ones by POST /v1/files.",
        param="files",
        code="file_too_large",
    )
