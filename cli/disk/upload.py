"""Uploads a file: a large one in parts, so that the same command resumes after a kill.

The id of an unfinished upload is stored on disk; the server lists the parts it has by checksum.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from jobs.counted import counted

if TYPE_CHECKING:
    from openai import OpenAI
    from openai.types import FileObject

PART_BYTES = 64 * 1024 * 1024
"""Largest size of a part."""
_PENDING = "pending"


def upload(client: OpenAI, name: str, content: BinaryIO, *, purpose: Any, path: Path, notes: Path) -> FileObject:
    """Upload the content of `path`; `notes` is the folder for ids of unfinished uploads."""
    size = _size_of(content)
    if size is None or size <= PART_BYTES:
        return client.files.create(file=(name, content), purpose=purpose)
    with _note(notes, client, path, name=name, size=size, purpose=purpose) as note:
        sent = _Parts.of(client, note.read())
        if sent is None:
            created = client.uploads.create(
                bytes=size, filename=name, mime_type="application/octet-stream", purpose=purpose
            )
            note.write(created.id)
            sent = _Parts(upload_id=created.id, ids={})
        elif sent.ids:
            num_sent = counted(sum(map(len, sent.ids.values())), "part")
            print(f"tokenmill: resuming {sent.upload_id}: {num_sent} already sent", file=sys.stderr, flush=True)
        part_ids, digest = [], hashlib.md5(usedforsecurity=False)
        while part := content.read(PART_BYTES):
            digest.update(part)
            part_ids.append(sent.find(part) or client.uploads.parts.create(sent.upload_id, data=part).id)
        done = client.uploads.complete(sent.upload_id, part_ids=part_ids, md5=digest.hexdigest())
        note.forget()
    assert done.file is not None, "a completed upload has its file"
    return done.file


@dataclass(slots=True)
class _Parts:
    """Parts that the server already has: ids by checksum."""

    upload_id: str
    ids: dict[str, list[str]]

    @classmethod
    def of(cls, client: OpenAI, upload_id: str | None) -> _Parts | None:
        """Return the parts of a pending upload; None if there is none, or it has ended."""
        from openai import NotFoundError

        pending: dict[str, Any] = {}
        if upload_id is not None:
            with suppress(NotFoundError):
                pending = client.get(f"/uploads/{upload_id}", cast_to=dict[str, Any])
        if upload_id is None or pending.get("status") != _PENDING:
            return None
        ids: dict[str, list[str]] = {}
        for part in pending["parts"]:
            ids.setdefault(part["md5"], []).append(part["id"])
        return cls(upload_id=upload_id, ids=ids)

    def find(self, part: bytes) -> str | None:
        """Return the id of a part with this content, each once: a file may have equal parts."""
        ids = self.ids.get(hashlib.md5(part, usedforsecurity=False).hexdigest())
        return ids.pop() if ids else None


class _Note:
    """The stored id of a file's unfinished upload; without a path nothing is stored."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def read(self) -> str | None:
        with suppress(OSError):
            return None if self._path is None else self._path.read_text() or None
        return None

    def write(self, upload_id: str) -> None:
        if self._path is not None:
            with suppress(OSError):  # a full disk: this upload cannot be resumed
                self._path.write_text(upload_id)

    def forget(self) -> None:
        if self._path is not None:
            self._path.unlink(missing_ok=True)


@contextmanager
def _note(folder: Path, client: OpenAI, path: Path, **identity: Any) -> Iterator[_Note]:
    """Open and lock the note for this version of a file and this server, so that one command resumes its upload."""
    changed = path.stat().st_mtime_ns
    whole = json.dumps([str(client.base_url), str(path.absolute()), changed, identity], sort_keys=True)
    note_path = folder / hashlib.sha256(whole.encode(errors="surrogateescape")).hexdigest()[:24]
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(note_path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError:
        yield _Note(None)
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # another command uploads the same file: upload independently
        yield _Note(None)
    else:
        yield _Note(note_path)
    finally:
        os.close(lock)


def _size_of(content: BinaryIO) -> int | None:
    """Return the size in bytes; None for a pipe, which cannot be read twice."""
    if not content.seekable():
        return None
    size = content.seek(0, os.SEEK_END)
    content.seek(0)
    return size
