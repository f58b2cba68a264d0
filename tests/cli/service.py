"""The command as a user types it, an API for it, and processing of batches in place of workers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import select
from typer.testing import CliRunner, Result

from api.app import create_app
from api.server import ServerConfig, connections_of
from cli.app import app
from jobs.batches import exact_counts
from jobs.batches.finalisation import finalise_batch
from jobs.batches.sweeps import finish_ready
from jobs.batches.validation import validate_batch
from jobs.chunks import claiming, fleet, leasing
from jobs.chunks.recording import LineResult
from jobs.database import connect, sessions, transaction
from jobs.lines.output_lines import error_line, output_line
from jobs.storage import Storage
from jobs.tables import Chunk
from tests.all_settings import Settings
from tests.api.waiting import running

ROOT = Path(__file__).resolve().parents[2]

LINE: dict[str, Any] = {
    "custom_id": "a",
    "method": "POST",
    "url": "/v1/completions",
    "body": {"model": "tiny", "prompt": "Hello", "max_tokens": 4},
}

Tokenmill = Callable[..., Result]


def run(*arguments: str | Path, **variables: str) -> Result:
    """Invoke the command in this process."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env=variables, catch_exceptions=False)


def clean_environment(**variables: str) -> dict[str, str]:
    """Return the environment of a shell with no Tokenmill variables except `variables`."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TOKENMILL_")}
    return {**clean, "PYTHONPATH": str(ROOT), **variables}


def typed(
    *arguments: str | Path,
    variables: Mapping[str, str],
    preexec: Callable[[], None] | None = None,
    stdin: str | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own, as a shell does."""
    return subprocess.run(
        [sys.executable, "-m", "cli.main", *map(str, arguments)],
        capture_output=True, text=True, check=False, timeout=120, env=clean_environment(**variables),
        preexec_fn=preexec, input=stdin,
    )  # fmt: skip


def completed(
    line_no: int, custom_id: str | None = None, *, content: str = "text", finish_reason: str = "stop"
) -> LineResult:
    """Return an answer of five tokens; line 0 has custom_id "0" by default."""
    body = {"choices": [{"index": 0, "text": content, "finish_reason": finish_reason}]}
    line = output_line("batch", line_no, custom_id or str(line_no), status_code=200, body=body)
    is_truncated = finish_reason == "length"
    return LineResult(
        line_no=line_no, line=line, status_code=200, input_tokens=2, output_tokens=3, is_truncated=is_truncated
    )


def chatted(line_no: int, custom_id: str, content: str, **body: Any) -> LineResult:
    """Return an answer of a chat, of five tokens; keywords add to its body."""
    choice = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}
    line = output_line("batch", line_no, custom_id, status_code=200, body={"choices": [choice], **body})
    return LineResult(line_no=line_no, line=line, status_code=200, input_tokens=2, output_tokens=3)


def failed(line_no: int, custom_id: str | None = None, *, code: str, batch_id: str = "batch") -> LineResult:
    line = error_line(batch_id, line_no, custom_id or str(line_no), code=code, message="it went wrong")
    return LineResult(line_no=line_no, line=line, status_code=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """An API on a database and a folder; only the test processes its batches."""

    base_url: str
    database: str
    storage_url: str
    api_key: str

    @property
    def variables(self) -> dict[str, str]:
        return {"TOKENMILL_BASE_URL": self.base_url, "TOKENMILL_API_KEY": self.api_key}

    def run(self, *arguments: str | Path, **more: str) -> Result:
        """Invoke the command in this process, against the API."""
        return run(*arguments, **{**self.variables, **more})

    def start(self, *arguments: str | Path, before: Sequence[str] = ()) -> subprocess.Popen[str]:
        """Start the command in its own process, against the API."""
        command = [*before, sys.executable, "-m", "cli.main", *map(str, arguments)]
        return subprocess.Popen(
            command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=clean_environment(**self.variables)
        )

    def batches(self) -> list[dict[str, Any]]:
        """Return all batches, the newest first."""
        found: list[dict[str, Any]] = json.loads(self.run("batch", "list", "--json").stdout)
        return found

    def validate(self, batch_id: str) -> None:
        with self._maker() as maker:
            validate_batch(maker, Storage(self.storage_url), batch_id, settings=Settings())

    def count_an_input(self, *, tokens: int) -> bool:
        """Count an input in place of a worker, at `tokens` per prompt; return False if none is waiting."""
        with self._maker() as maker, transaction(maker) as session:
            claimed = exact_counts.claim(session, model="tiny", lease=Settings().lease)
            if claimed is None:
                return False
            turn = exact_counts.Turn(
                next_line=3, next_byte=claimed.size_bytes, is_whole=True, num_lines=3, input_tokens=3 * tokens,
                output_tokens=12, num_invalid=0, listed=[],
            )  # fmt: skip
            exact_counts.note_turn(session, claimed, turn, max_listed=0)
            return True

    @contextmanager
    def counting(self, *, tokens: int) -> Iterator[None]:
        """Count every input in place of a worker while the block lasts, as `count_an_input` does."""
        is_over = threading.Event()

        def count() -> None:
            while not is_over.is_set():
                if not self.count_an_input(tokens=tokens):
                    is_over.wait(0.05)

        with ThreadPoolExecutor(1) as threads:
            counter = threads.submit(count)
            try:
                yield
            finally:
                is_over.set()
        counter.result()

    def answer(self, batch_id: str, results: Sequence[LineResult]) -> None:
        """Record results of a validated batch of one chunk, and leave it running."""
        with self._maker() as maker, transaction(maker) as session:
            chunk_id = session.scalars(select(Chunk.id).where(Chunk.batch_id == batch_id)).one()
            claim = claiming.claim_chunk(session, chunk_id, worker_id="hand", lease=Settings().lease)
            assert claim is not None
            leasing.flush(session, claim, results, flush_no=0, lease=Settings().lease)
            leasing.release(session, claim)

    def finish(self, batch_id: str) -> None:
        """Write the files of a batch whose every line has its result."""
        with self._maker() as maker, transaction(maker) as session:
            chunk_id = session.scalars(select(Chunk.id).where(Chunk.batch_id == batch_id)).one()
            claim = claiming.claim_chunk(session, chunk_id, worker_id="hand", lease=Settings().lease)
            assert claim is not None
            leasing.complete(session, claim)
            finish_ready(session)
        self.write_files(batch_id)

    def write_files(self, batch_id: str) -> None:
        """Write the files of a batch that is ending."""
        with self._maker() as maker:
            finalise_batch(maker, Storage(self.storage_url), batch_id, settings=Settings())

    def cancel(self, batch_id: str, results: Sequence[LineResult]) -> None:
        """End a batch that has not been validated when these of its lines have a result."""
        self.validate(batch_id)
        self.answer(batch_id, results)
        self.run("batch", "cancel", batch_id)
        self.write_files(batch_id)

    def work_off(self, batch_id: str, results: Sequence[LineResult]) -> None:
        self.validate(batch_id)
        self.answer(batch_id, results)
        self.finish(batch_id)

    def worker_lives(self, **stats: Any) -> None:
        """Let a worker of the model send a heartbeat with its engine's statistics."""
        with self._maker() as maker, transaction(maker) as session:
            fleet.register(session, worker_id="hand", model="tiny", max_chunks=4, max_model_len=64)
            fleet.heartbeat(session, "hand", engine_stats=stats)

    @contextmanager
    def _maker(self) -> Iterator[Any]:
        engine = connect(self.database)
        try:
            yield sessions(engine)
        finally:
            engine.dispose()


@contextmanager
def serving(database: str, folder: Path, *, api_key: str, **settings: Any) -> Iterator[Service]:
    """Serve an API on `database` in a thread, with its files below `folder` and further settings.

    A process of its own would take 2 s of CPU to start.
    """
    storage_url = (folder / "objects").as_uri()
    given = Settings(database_url=database, storage_url=storage_url, **settings)
    with running(ServerConfig(create_app(given), connections_of(given), port=0)) as url:
        yield Service(base_url=f"{url}/v1", database=database, storage_url=storage_url, api_key=api_key)


def write_lines(path: Path, count: int = 3, *, prompt: str = "Hello") -> Path:
    line = {**LINE, "body": {**LINE["body"], "prompt": prompt}}
    path.write_text("".join(json.dumps({**line, "custom_id": str(number)}) + "\n" for number in range(count)))
    return path
