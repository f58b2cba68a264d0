"""Tests of `tokenmill extract` that dies after any answer of the server: the same command ends what it began."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cli import client as clients
from cli.watching import stages
from tests.cli.extracting_service import ExtractingService

pytestmark = [pytest.mark.long, pytest.mark.timeout(120)]

SCHEMA = {"type": "object", "properties": {"vendor": {"type": "string"}, "total": {"type": "string"}}}
PAPERS = {"a.txt": "vendor: Ash Ltd\ntotal: 12.50", "b.txt": "vendor: Birch Ltd\ntotal: 3.00", "c.pdf": "%PDF-1.7\n"}
NUM_READ, NUM_TOKENS = 3, 2 * 7
"""Files that are read, and tokens that are billed for the two that can be asked."""


class Killed(BaseException):
    """The end of the process."""


class Deaths:
    """Ends the command after the `number`-th answer to a request whose method and path match; counts uploads."""

    def __init__(self, request: str, number: int) -> None:
        self._request = re.compile(request)
        self._left = number
        self.num_uploads = 0

    def client(self, make_client: Any, base_url: str, api_key: str) -> Any:
        made = make_client(base_url, api_key)
        made._client.event_hooks = {"response": [self._after]}
        return made

    def _after(self, response: Any) -> None:
        request = f"{response.request.method} {response.request.url.path.removeprefix('/v1')}"
        self.num_uploads += request == "POST /files"
        if request == "POST /files/several":
            response.read()
            self.num_uploads += len(response.json()["data"])
        self._left -= self._request.fullmatch(request) is not None
        if self._left == 0:
            self._left = -1  # the next start lives on
            raise Killed


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "_POLL_SECONDS", 0.05)


@pytest.fixture
def papers(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    for name, content in PAPERS.items():
        (folder / name).write_text(content)
    (tmp_path / "s.json").write_text(json.dumps(SCHEMA))
    return folder


def outputs(folder: Path) -> Iterator[Path]:
    return (folder / name for name in ("fields.jsonl", "fields.parquet", "report.html"))


def command(papers: Path) -> list[str | Path]:
    folder = papers.parent
    records, table, report = outputs(folder)
    known = folder / "gold.jsonl"
    (folder / "known.txt").write_text("vendor: Yew Ltd")
    known.write_text(json.dumps({"document": str(folder / "known.txt"), "fields": {"vendor": "Yew Ltd"}}))
    written: list[str | Path] = ["-o", records, "--parquet", table, "--report", report, "--examples", known]
    return ["extract", papers, "--schema", folder / "s.json", *written, "--data-dir", folder / "d"]


STEPS = [
    *(("POST /collections", 1), ("POST /files/several", 1), ("POST /collections/.+/documents", 1)),
    *(("POST /files", 1), ("POST /extractions", 1), ("GET /extractions/[^/]+", 1), ("GET /extractions/.+/results", 1)),
    *(("GET /collections/.+/text", 1), ("DELETE /extractions/.+", 1), ("DELETE /files/.+", 1)),
    *(("DELETE /files/.+", 4), ("DELETE /collections/.+", 1)),
]
"""Requests, and which of them is the last that the command lives to see answered; the single file has the examples."""


@pytest.mark.parametrize(("request_", "number"), STEPS)
def test_after_any_answer_the_same_command_ends_what_it_began(
    extracting: ExtractingService, papers: Path, monkeypatch: pytest.MonkeyPatch, request_: str, number: int
) -> None:
    billed, read = extracting.billed_tokens(), extracting.answering.num_read
    deaths = Deaths(request_, number)
    monkeypatch.setattr(clients, "make_client", partial(deaths.client, clients.make_client))
    with extracting.working():
        with pytest.raises(Killed):
            extracting.service.run(*command(papers))
        result = extracting.service.run(*command(papers))
    assert result.exit_code == 0, result.stderr
    records = [json.loads(line) for line in (papers.parent / "fields.jsonl").read_text().splitlines()]
    assert [(Path(one["document"]).name, one["status"]) for one in records] == [
        *(("a.txt", "done"), ("b.txt", "done"), ("c.pdf", "failed"))
    ]
    assert all(path.stat().st_size for path in outputs(papers.parent))
    assert [path.name for path in papers.parent.iterdir() if path.name.endswith(".part")] == []
    assert (deaths.num_uploads, extracting.answering.num_read - read) == (NUM_READ + 1, NUM_READ)
    assert extracting.billed_tokens() - billed == NUM_TOKENS
    assert {kind: len(objects) for kind, objects in extracting.stored().items()} == dict.fromkeys(
        ("collections", "extractions", "files", "batches"), 0
    )
