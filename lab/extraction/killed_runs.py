"""Two ways to extract documents that can be killed at any moment and resumed: one command, and a server.

Each reports its progress, and the contents of its database at the end.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import psycopg

from examples.field_requests import SCHEMA_PATH
from jobs.audit.audit import audit
from jobs.database import connect, sessions, transaction
from jobs.errors import ServiceError
from jobs.storage import Storage
from lab.own_stack import free_port

_EXPORT = re.compile(r"export TOKENMILL_BASE_URL=(\S+) TOKENMILL_API_KEY=(\S+)")
_OPEN = "SELECT count(*) FROM batch WHERE state NOT IN ('completed', 'failed', 'expired', 'cancelled')"
_LEDGER = "SELECT coalesce(sum(input_tokens), 0), coalesce(sum(output_tokens), 0) FROM ledger"
_PAGE = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Billed:
    """Contents of the database once all batches have ended."""

    input_tokens: int
    output_tokens: int
    findings: tuple[str, ...]
    """Of the audit: what is missing, repeated, or billed twice."""


class KilledRun(ABC):
    """An extraction of the files in `folder / "in"` that resumes when it is started again."""

    name: str
    units_a_document: int
    """Units of progress per document."""

    def __init__(self, folder: Path, options: Sequence[str]) -> None:
        self.folder = folder
        self.options = options
        self._process: subprocess.Popen[str] | None = None

    @abstractmethod
    def start(self) -> None:
        """Start or resume the extraction."""

    @abstractmethod
    def progress(self) -> int:
        """Return the number of completed units."""

    @abstractmethod
    def has_ended(self) -> bool:
        """Return whether all work is done. Raises RuntimeError if it ended in another way."""

    @abstractmethod
    def billed(self) -> Billed | None:
        """Return what was billed; None if that could not be read."""

    @abstractmethod
    def records(self) -> list[dict[str, Any]]:
        """Return the records."""

    def kill(self) -> None:
        """Kill all its processes at once, including its servers."""
        assert self._process is not None, "it was started"
        with suppress(psutil.NoSuchProcess):
            parent = psutil.Process(self._process.pid)
            family = [*parent.children(recursive=True), parent]
            for process in family:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(family, timeout=30)
        self._process.wait()

    def _spawn(self, *arguments: str, stdout: int = subprocess.DEVNULL) -> subprocess.Popen[str]:
        with (self.folder / "log").open("a") as log:
            command = [sys.executable, "-m", "cli.main", *arguments]
            return subprocess.Popen(command, cwd=self.folder, stdout=stdout, stderr=log, text=True, env=_environment())


class EmbeddedRun(KilledRun):
    """`tokenmill extract`, which starts a service for itself."""

    name = "embedded"
    units_a_document = 3  # reading, answering and grounding
    _billed: Billed | None = None

    def start(self) -> None:
        arguments = ("--schema", str(SCHEMA_PATH), "-o", "fields.jsonl", "--data-dir", "data")
        self._process = self._spawn("extract", "in", *arguments, *self.options)

    def progress(self) -> int:
        """Return the number of lines with a result, and note what they cost: they are deleted with the end."""
        with suppress(psycopg.Error, ServiceError, FileNotFoundError):  # not there yet, or already deleted
            url = (self.folder / "data" / "run" / "database_url").read_text().strip()
            count, num_open = _counts(url)
            if count and not num_open:
                self._billed = _billed(url, self.folder / "data" / "objects")
            return count
        return 0

    def has_ended(self) -> bool:
        assert self._process is not None, "it was started"
        if self._process.poll() is None:
            return False
        if self._process.returncode:
            raise RuntimeError((self.folder / "log").read_text()[-2000:])
        return True

    def billed(self) -> Billed | None:
        return self._billed

    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "fields.jsonl").read_text().splitlines()]


class ServedRun(KilledRun):
    """An extraction on a server, `tokenmill up`."""

    name = "server"
    units_a_document = 3  # reading, answering and grounding
    _extraction_id: str | None = None

    def __init__(self, folder: Path, options: Sequence[str]) -> None:
        super().__init__(folder, options)
        self._port = free_port()
        self._client: openai.OpenAI | None = None

    def start(self) -> None:
        place = ("--show-key", "--data-dir", "data", "--port", str(self._port), "--served-name", "demo")
        self._process = self._spawn("up", *place, *self.options, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        match = _EXPORT.match(self._process.stdout.readline())
        if match is None:
            raise RuntimeError((self.folder / "log").read_text()[-2000:])
        self._client = openai.OpenAI(base_url=match[1], api_key=match[2])
        if self._extraction_id is None:
            self._extraction_id = self._create()

    def progress(self) -> int:
        with suppress(psycopg.Error, FileNotFoundError):
            return _counts(self._database_url())[0]
        return 0

    def has_ended(self) -> bool:
        extraction = self._request("GET", f"/extractions/{self._extraction_id}").json()
        if extraction["status"] in ("failed", "cancelled"):
            raise RuntimeError(extraction["reason"])
        return bool(extraction["status"] == "completed")

    def billed(self) -> Billed | None:
        return _billed(self._database_url(), self.folder / "data" / "objects")

    def records(self) -> list[dict[str, Any]]:
        records, after = [], "0"
        while True:
            page = self._request("GET", f"/extractions/{self._extraction_id}/results?after={after}&limit={_PAGE}")
            records += [json.loads(line) for line in page.text.splitlines()]
            after = page.headers["x-next-after"]
            if page.headers["x-has-more"] == "false":
                return records

    def _create(self) -> str:
        assert self._client is not None, "it has started"
        ids = [
            self._client.files.create(file=path, purpose="user_data").id
            for path in sorted((self.folder / "in").iterdir())
        ]
        collection = self._request("POST", "/collections", {"name": "kills"}).json()["id"]
        for first in range(0, len(ids), _PAGE):
            self._request("POST", f"/collections/{collection}/documents", {"file_ids": ids[first : first + _PAGE]})
        schema = json.loads(SCHEMA_PATH.read_text())
        body = {"collection_id": collection, "schema": schema, "model": "demo"}
        extraction_id: str = self._request("POST", "/extractions", body).json()["id"]
        return extraction_id

    def _request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> httpx.Response:
        assert self._client is not None, "it has started"
        if method == "GET":
            return self._client.get(path, cast_to=httpx.Response)
        return self._client.post(path, body=body, cast_to=httpx.Response)

    def _database_url(self) -> str:
        return (self.folder / "data" / "run" / "database_url").read_text().strip()


RUNS: tuple[type[KilledRun], ...] = (EmbeddedRun, ServedRun)


def _environment() -> dict[str, str]:
    """Return this environment without variables that point to another service."""
    return {
        name: value for name, value in os.environ.items() if name not in ("TOKENMILL_BASE_URL", "TOKENMILL_API_KEY")
    }


def _counts(url: str) -> tuple[int, int]:
    """Return the numbers of results and of open batches."""
    with psycopg.connect(url, connect_timeout=2) as connection:
        results = connection.execute("SELECT count(*) FROM result").fetchall()[0][0]
        return int(results), int(connection.execute(_OPEN).fetchall()[0][0])


def _billed(url: str, objects: Path) -> Billed:
    with psycopg.connect(url, connect_timeout=2) as connection:
        input_tokens, output_tokens = connection.execute(_LEDGER).fetchall()[0]
    with ExitStack() as closing:
        engine = connect(url)
        closing.callback(engine.dispose)
        session = closing.enter_context(transaction(sessions(engine)))
        report = audit(session, storage=Storage(objects.as_uri()))
    findings = tuple(f"{each.subject}: {each.message}" for each in report)
    return Billed(input_tokens=int(input_tokens), output_tokens=int(output_tokens), findings=findings)
