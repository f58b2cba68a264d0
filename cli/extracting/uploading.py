"""Uploads the documents of a command: small ones together, since a request costs more than they do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from cli.calls import Calls
from cli.disk.input_file import raw
from cli.extracting.order import Input
from cli.file_commands import upload_as
from cli.service.service import Service

_SMALL_BYTES = 1024 * 1024
_TOGETHER = 200
_TOGETHER_BYTES = 16 * 1024 * 1024
"""Of one request, which is held in memory; a server allows 500 files and 64 MiB."""

Named = tuple[Input, str]
"""A document and the name of its file."""


def upload_documents(
    service: Service, documents: Sequence[Named], *, on_each: Callable[[], None], on_request: Callable[[], None]
) -> Iterator[str]:
    """Yield the id of each document's file, in their order; `on_request` may raise to stop."""
    for group in _groups(documents):
        on_request()
        for file_id in _sent_together(service, group) if len(group) > 1 else [_sent(service, *group[0])]:
            on_each()
            yield file_id


def _groups(documents: Sequence[Named]) -> Iterator[list[Named]]:
    """Yield consecutive small documents together, and each large one by itself."""
    group: list[Named] = []
    size_bytes = 0
    for one in documents:
        more = _size_of(one[0].path)
        if group and (more > _SMALL_BYTES or size_bytes + more > _TOGETHER_BYTES or len(group) == _TOGETHER):
            yield group
            group, size_bytes = [], 0
        group.append(one)
        size_bytes += more
        if more > _SMALL_BYTES:
            yield group
            group, size_bytes = [], 0
    if group:
        yield group


def _size_of(path: Path) -> int:
    """Return a document's size; 0 if it cannot be read, which its upload reports."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _sent_together(service: Service, group: Sequence[Named]) -> list[str]:
    files = []
    for one, name in group:
        with raw(one.path) as (_, content):
            files.append((name, content.read()))
    answer = Calls(service.client).post_files("/files/several", files, purpose="user_data")
    return [file["id"] for file in answer["data"]]


def _sent(service: Service, one: Input, name: str) -> str:
    """Upload a document: to a server a large one in parts, with which the same command continues."""
    if not service.is_here:
        return str(upload_as(service.client, one.path, name=name, purpose="user_data").id)
    with raw(one.path) as (_, content):
        return str(service.client.files.create(file=(name, content), purpose="user_data").id)
