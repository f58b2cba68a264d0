"""Tests of how a command groups its documents into uploads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cli.extracting import uploading
from cli.extracting.order import Input
from cli.extracting.uploading import upload_documents
from jobs.errors import InputError


class Server:
    """The client of a service that notes the files of each request."""

    def __init__(self) -> None:
        self.requests: list[list[str]] = []
        self.files = SimpleNamespace(create=self._create)

    def post(self, path: str, *, body: dict[str, str], files: Any, **_: object) -> Any:
        assert (path, body) == ("/files/several", {"purpose": "user_data"})
        names = [name for _, (name, _) in files]
        self.requests.append(names)
        return SimpleNamespace(json=lambda: {"data": [{"id": f"file_{name}"} for name in names]})

    def _create(self, *, file: tuple[str, Any], purpose: str) -> Any:
        self.requests.append([file[0]])
        return SimpleNamespace(id=f"file_{file[0]}")


@pytest.fixture
def documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Sequence[int]], list[tuple[Input, str]]]:
    monkeypatch.setattr(uploading, "_SMALL_BYTES", 10)
    monkeypatch.setattr(uploading, "_TOGETHER", 3)
    monkeypatch.setattr(uploading, "_TOGETHER_BYTES", 20)

    def write(sizes: Sequence[int]) -> list[tuple[Input, str]]:
        for number, size in enumerate(sizes):
            (tmp_path / str(number)).write_bytes(b"x" * size)
        return [(Input(path=tmp_path / str(number), sha256=""), str(number)) for number in range(len(sizes))]

    return write


def uploaded(server: Server, documents: list[tuple[Input, str]], *, on_each: Callable[[], None]) -> list[str]:
    service: Any = SimpleNamespace(client=server, is_here=True)
    return list(upload_documents(service, documents, on_each=on_each, on_request=lambda: None))


@pytest.mark.parametrize(
    ("sizes", "requests"),
    [
        ([], []),
        ([5], ["0"]),
        ([0, 0, 0, 0], ["012", "3"]),
        ([10, 10, 1], ["01", "2"]),
        ([1, 1, 11, 11, 1, 1], ["01", "2", "3", "45"]),
    ],
)
def test_small_documents_go_together_in_order_and_large_ones_alone(
    documents: Callable[[Sequence[int]], list[tuple[Input, str]]], sizes: list[int], requests: list[str]
) -> None:
    server, counted = Server(), []
    ids = uploaded(server, documents(sizes), on_each=lambda: counted.append(1))
    assert ids == [f"file_{number}" for number in range(len(sizes))]
    assert len(counted) == len(sizes)
    assert ["".join(names) for names in server.requests] == requests


def test_a_document_that_is_gone_is_named(documents: Callable[[Sequence[int]], list[tuple[Input, str]]]) -> None:
    given = documents([1, 1])
    given[1][0].path.unlink()
    server = Server()
    with pytest.raises(InputError, match=str(given[1][0].path)):
        uploaded(server, given, on_each=lambda: None)
    assert server.requests == []
