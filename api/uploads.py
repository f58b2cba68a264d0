"""Streams an upload from the socket into the object store, counting and estimating its requests on the way.

Memory is bounded by one piece of the body and the store's own parts, for any size of file. The row of the object is
created afterwards, so an interrupted upload leaves neither.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import anyio
from anyio.to_thread import run_sync
from fastapi import Request

from api.multipart import UploadReader
from api.store import RequestStore
from jobs.errors import InputError, TooLargeError
from jobs.files import MAX_EXPIRY_SECONDS, MIN_EXPIRY_SECONDS, NewFile, Purpose
from jobs.lines.input_estimate import InputEstimator
from jobs.settings import Settings
from jobs.storage import ObjectWriter, Storage

PIECE_BYTES = 1024 * 1024  # of the body, per hop to a worker thread; the socket delivers 64 KiB at a time
FORM_OVERHEAD_BYTES = 64 * 1024  # boundaries, headers and the small fields around a file
PURPOSES = (Purpose.BATCH, Purpose.USER_DATA)  # outputs are made here, never uploaded

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class FormField:
    """A field beside the file: its schema, the check of its values, and the advice for a wrong value."""

    schema: Mapping[str, Any]
    is_allowed: Callable[[str], bool]
    wish: str

    def check(self, name: str, value: str) -> None:
        """Raise InputError if the field `name` has a value that is not allowed."""
        if not self.is_allowed(value):
            raise InputError(
                f"Invalid value for '{name}': {value[:100]!r}. {self.wish}.", param=name, code="invalid_value"
            )


def _is_expiry(value: str) -> bool:
    is_number = value.isascii() and value.isdecimal() and len(value) < 10
    return is_number and MIN_EXPIRY_SECONDS <= int(value) <= MAX_EXPIRY_SECONDS


FORM_FIELDS = {
    "purpose": FormField(
        schema={"type": "string", "enum": [str(purpose) for purpose in PURPOSES]},
        is_allowed=lambda value: value in PURPOSES,
        wish=f"Allowed are {' and '.join(PURPOSES)}",
    ),
    "expires_after[anchor]": FormField(
        schema={"type": "string", "enum": ["created_at"]},
        is_allowed=lambda value: value == "created_at",
        wish="The only anchor is created_at",
    ),
    "expires_after[seconds]": FormField(
        schema={"type": "integer", "minimum": MIN_EXPIRY_SECONDS, "maximum": MAX_EXPIRY_SECONDS},
        is_allowed=_is_expiry,
        wish=f"Give {MIN_EXPIRY_SECONDS} to {MAX_EXPIRY_SECONDS} seconds",
    ),
}
FORM_SCHEMA: dict[str, Any] = {  # for /openapi.json, as the form is parsed by hand
    "required": True,
    "content": {
        "multipart/form-data": {
            "schema": {
                "type": "object",
                "required": ["purpose", "file"],
                "additionalProperties": False,
                "properties": {
                    **{name: field.schema for name, field in FORM_FIELDS.items()},
                    "file": {"type": "string", "format": "binary"},
                },
                "dependentRequired": {
                    "expires_after[anchor]": ["expires_after[seconds]"],
                    "expires_after[seconds]": ["expires_after[anchor]"],
                },
            }
        }
    },
}


class Upload:
    """One file in upload: a `Receiver` of its form."""

    def __init__(self, content_type: str, object_key: str, *, storage: Storage, settings: Settings) -> None:
        self.object_key = object_key
        self._storage, self._max_file_bytes = storage, settings.max_file_bytes
        checks = {name: field.check for name, field in FORM_FIELDS.items()}
        self._reader = UploadReader(content_type, self, checks=checks)
        self._estimator = InputEstimator(default_max_tokens=settings.default_max_tokens)
        self._stack = ExitStack()
        self._writer: ObjectWriter | None = None
        self._size_bytes = 0

    def feed(self, piece: bytes) -> None:
        self._reader.feed(piece)

    def begin(self, filename: str) -> None:
        """The object is opened with the first byte."""

    def write(self, data: bytes) -> None:
        """Write content of the file from the form's reader. Raise TooLargeError at the first byte too many."""
        self._size_bytes += len(data)
        if self._size_bytes > self._max_file_bytes:
            raise too_large(self._size_bytes, self._max_file_bytes)
        self._open_writer().write(data)
        self._estimator.feed(data)

    def _open_writer(self) -> ObjectWriter:
        if self._writer is None:
            self._writer = self._stack.enter_context(self._storage.writer(self.object_key))
        return self._writer

    def finish(self) -> NewFile:
        """Check the form and commit the object. Raise InputError if the form is incomplete."""
        form = self._reader.finish()
        purpose, expires_after_seconds = read_fields(form.fields)
        self._open_writer()  # an empty file is an object too
        self._stack.close()
        return NewFile(
            object_key=self.object_key,
            filename=form.filename,
            purpose=purpose,
            expires_after_seconds=expires_after_seconds,
            size_bytes=self._size_bytes,
            estimate=self._estimator.finish() if purpose == Purpose.BATCH else None,
        )

    def abort(self, error: BaseException) -> None:
        """Discard the object."""
        self._stack.__exit__(type(error), error, error.__traceback__)


async def receive_upload(request: Request, object_key: str, *, store: RequestStore, settings: Settings) -> NewFile:
    """Receive the whole body of `request`.

    Raise InputError or TooLargeError as soon as the bytes show it, ClientDisconnect if the client disconnects.
    """
    announced = announced_bytes(request)
    if announced > settings.max_file_bytes + FORM_OVERHEAD_BYTES:
        raise too_large(announced, settings.max_file_bytes)
    upload = Upload(content_type_of(request), object_key, storage=store.storage, settings=settings)
    return await receive(request, upload, store=store)


class Receiver(Protocol[T_co]):
    """The receiver of a body; its methods block, so they run in worker threads, one after another."""

    def feed(self, piece: bytes) -> None: ...
    def finish(self) -> T_co: ...
    def abort(self, error: BaseException) -> None: ...


async def receive(request: Request, receiver: Receiver[T], *, store: RequestStore) -> T:
    """Feed the whole body in pieces and return the receiver's result; on any error call `abort`."""
    threads = store.upload_threads
    try:
        async for piece in _pieces(request):
            await run_sync(receiver.feed, piece, limiter=threads)
        return await run_sync(receiver.finish, limiter=threads)
    except BaseException as error:
        with anyio.CancelScope(shield=True):
            await run_sync(receiver.abort, error, limiter=threads)
        raise


def announced_bytes(request: Request) -> int:
    """Return the announced length of the body, 0 if there is none."""
    announced = request.headers.get("content-length", "")
    return int(announced) if announced.isdecimal() else 0


def content_type_of(request: Request) -> str:
    return request.headers.get("content-type", "")


async def _pieces(request: Request) -> AsyncIterator[bytes]:
    gathered = bytearray()
    async for part in request.stream():
        gathered += part
        if len(gathered) >= PIECE_BYTES:
            yield bytes(gathered)
            gathered.clear()
    yield bytes(gathered)


def read_fields(fields: dict[str, str]) -> tuple[str, int | None]:
    """Return (purpose, expires_after_seconds) of checked fields. Raise InputError naming a missing one."""
    expiry = FORM_FIELDS.keys() - {"purpose"}
    required = FORM_FIELDS.keys() if expiry & fields.keys() else {"purpose"}
    for name in sorted(required - fields.keys()):
        raise InputError(f"Missing required parameter: '{name}'.", param=name, code="missing_required_parameter")
    seconds = fields.get("expires_after[seconds]")
    return fields["purpose"], None if seconds is None else int(seconds)


def too_large(size_bytes: int, max_file_bytes: int, *, param: str = "file") -> TooLargeError:
    return TooLargeError(
        f"The file has {size_bytes:,} bytes or more; one file may have {max_file_bytes:,}. Split it into several.",
        param=param,
        code="file_too_large",
    )
