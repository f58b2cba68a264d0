"""Uploads the lines of a command as one file, without another copy on this machine."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from cli.disk.input_file import opened
from cli.file_commands import upload_as

if TYPE_CHECKING:
    from cli.service.service import Service

_READ_BYTES = 1 << 20


def upload_input(service: Service, path: Path, *, name: str) -> Any:
    """Stream an input file, unpacked, to a service; return the file there.

    To a server a large file is sent in parts, with which the same command continues. A service on this machine gets it
    at once, as parts would be joined on the same disk.
    """
    if not service.is_here:
        return upload_as(service.client, path, name=name, purpose="batch")
    with opened(path) as content:
        return upload_stream(service, iter(lambda: content.read(_READ_BYTES), b""), name=name)


def upload_stream(service: Service, pieces: Iterable[bytes], *, name: str) -> Any:
    """Upload pieces as they come; return the file. Raises what their iterator raises."""
    stream = _Pieces(pieces)
    try:
        # A stream cannot be sent twice.
        return service.client.with_options(max_retries=0).files.create(
            file=(name, cast(BinaryIO, stream)), purpose="batch"
        )
    except Exception:
        if stream.failure is not None:
            raise stream.failure from None  # the client wraps it
        raise


class _Pieces:
    """A file to read once, of unknown size."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._rest = bytearray()
        self.failure: Exception | None = None

    def read(self, size: int) -> bytes:
        """Return `size` bytes, fewer at the end."""
        try:
            while len(self._rest) < size and (piece := next(self._pieces, None)) is not None:
                self._rest += piece
        except Exception as error:
            self.failure = error
            raise
        part = bytes(self._rest[:size])
        del self._rest[:size]
        return part
