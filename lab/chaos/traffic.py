"""A steady load of batches, some of them cancelled, expired or deleted; the outcome of each is checked."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Any

import httpx
import psycopg
from tokenizers import Tokenizer

from lab.chaos.expected import ENDPOINT, Answer, Found, Lines, check_files
from lab.chaos.receiver import Received
from lab.chaos.stack import MODEL, MODEL_FOLDER, Stack

NUM_OPEN = 8
"""Open batches: enough that workers always have work."""
_SIZES = (50, 500, 1_000, 3_000)
_POLL_SECONDS = 0.5
_PAUSE_SECONDS = 0.5
_TIMEOUT_SECONDS = 30.0
_ENDED = ("completed", "failed", "expired", "cancelled")
_TOO_LATE = 409


class Fate(StrEnum):
    """What happens to a batch."""

    LEFT = "left alone"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    DELETED = "deleted"


_FATES = (Fate.LEFT,) * 7 + (Fate.CANCELLED, Fate.EXPIRED, Fate.DELETED)
_NOT_RUN = {"cancelled": "batch_cancelled", "expired": "batch_expired"}
_LEDGER = """
    SELECT coalesce(sum(num_results), 0)::bigint, coalesce(sum(input_tokens), 0)::bigint,
        coalesce(sum(output_tokens), 0)::bigint
    FROM ledger WHERE batch_id = %s AND num_results > 0
"""
_RUN_OUT = "UPDATE batch SET expires_at = clock_timestamp() WHERE id = %s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A batch that has ended."""

    batch_id: str
    fate: Fate
    status: str
    num_lines: int
    found: Found
    problems: Sequence[str]


@dataclass(slots=True, eq=False)
class Traffic:
    """Threads that submit batches, wait for their ends and check their files, until there have been enough."""

    stack: Stack
    received: Received
    num_lines: int
    seed: int
    answers_to: Callable[[Sequence[str]], Mapping[str, Answer]] | None = None
    """Set when workers compute with the model; otherwise answers repeat the prompts."""
    outcomes: list[Outcome] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    """Errors of the traffic itself."""
    _is_enough: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _num_submitted: int = 0
    _numbers: itertools.count[int] = field(default_factory=itertools.count)
    _threads: list[threading.Thread] = field(default_factory=list)

    def start(self) -> None:
        """Start, once every tenant has a webhook."""
        for key in self.stack.keys:
            event_types = [f"batch.{status}" for status in _ENDED]
            endpoint = {"url": self.received.url, "name": "chaos", "event_types": event_types}
            self._client(key).call("POST", "/webhook_endpoints", json=endpoint)
        self._threads = [threading.Thread(target=self._run, name=f"traffic-{n}", daemon=True) for n in range(NUM_OPEN)]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Submit no more than `num_lines`, even while faults go on."""
        self._is_enough.set()

    def stop(self) -> None:
        """Submit no more batches."""
        self.num_lines = 0
        self.end()

    @property
    def is_over(self) -> bool:
        """Return whether every batch has ended."""
        return not any(thread.is_alive() for thread in self._threads)

    @property
    def num_finished(self) -> int:
        """Return the number of lines of ended batches."""
        return sum(outcome.num_lines for outcome in self.outcomes)

    def _client(self, key: str) -> PatientClient:
        return PatientClient(f"{self.stack.base_url}/v1", key)

    def _run(self) -> None:
        while (following := self._next()) is not None:
            number, num_lines = following
            try:
                self.outcomes.append(self._carry_out(number, num_lines))
            except Exception as error:  # noqa: BLE001 - the edge of the thread: the error goes into the report
                self.faults.append(f"batch {number}: {type(error).__name__}: {error}")

    def _next(self) -> tuple[int, int] | None:
        """Return the number and the size of the next batch; more than requested while faults go on."""
        with self._lock:
            left = self.num_lines - self._num_submitted
            if left <= 0 and self._is_enough.is_set():
                return None
            number = next(self._numbers)
            largest = max(_SIZES[0], self.num_lines // 10)
            size = min(random.Random(f"{self.seed} size {number}").choice(_SIZES), largest)
            if left > 0:
                size = min(size, left)
            self._num_submitted += size
            return number, size

    def _carry_out(self, number: int, num_lines: int) -> Outcome:
        rng = random.Random(f"{self.seed} batch {number}")
        client = self._client(self.stack.keys[number % len(self.stack.keys)])
        lines = Lines(name=f"s{self.seed}b{number}", num=num_lines, model=MODEL)
        content = {"file": ("in.jsonl", lines.content())}
        file = client.call("POST", "/files", data={"purpose": "batch"}, files=content)
        body = {"input_file_id": file["id"], "endpoint": ENDPOINT, "completion_window": "24h"}
        body |= {"priority": rng.choice(("urgent", "normal", "normal", "bulk"))}
        created = client.call("POST", "/batches", json=body, headers={"Idempotency-Key": lines.name})
        fate = rng.choice(_FATES)
        batch = self._wait(client, created["id"], fate, after=rng.random() * num_lines)
        found = self._look_at(client, batch, lines)
        problems = [*found.problems, *self._compare(batch, lines, found)]
        if fate is Fate.DELETED:
            client.call("DELETE", f"/batches/{batch['id']}", is_done=(404,))
        return Outcome(
            batch_id=batch["id"],
            fate=fate,
            status=batch["status"],
            num_lines=num_lines,
            found=found,
            problems=[f"batch {lines.name} ({batch['id']}, {batch['status']}): {problem}" for problem in problems],
        )

    def _wait(self, client: PatientClient, batch_id: str, fate: Fate, *, after: float) -> dict[str, Any]:
        """Return the batch once it has ended; end it early if that is its fate."""
        is_left = fate not in (Fate.CANCELLED, Fate.EXPIRED)
        while (batch := client.call("GET", f"/batches/{batch_id}"))["status"] not in _ENDED:
            if not is_left and batch["status"] == "in_progress" and batch["request_counts"]["completed"] >= after:
                is_left = self._end_early(client, batch_id, fate)
            time.sleep(_POLL_SECONDS)
        return batch

    def _end_early(self, client: PatientClient, batch_id: str, fate: Fate) -> bool:
        """Cancel or expire a batch; return whether the request was accepted."""
        if fate is Fate.CANCELLED:
            client.call("POST", f"/batches/{batch_id}/cancel", is_done=(_TOO_LATE,))
            return True
        with suppress(psycopg.Error):
            self.stack.query(_RUN_OUT, batch_id)
            return True
        return False

    def _look_at(self, client: PatientClient, batch: dict[str, Any], lines: Lines) -> Found:
        output, errors = (
            b"" if batch[name] is None else client.content(batch[name]) for name in ("output_file_id", "error_file_id")
        )
        answers = self.answers_to and self.answers_to([lines.prompt(number) for number in range(lines.num)])
        not_run = _NOT_RUN.get(batch["status"])
        return check_files(lines, output, errors, not_run=not_run, count_tokens=count_tokens, answers=answers)

    def _compare(self, batch: dict[str, Any], lines: Lines, found: Found) -> list[str]:
        """Return where counters and ledger differ from the files."""
        problems = []
        counts, files = batch["request_counts"], (lines.num, found.num_answers, found.num_not_run)
        if (counts["total"], counts["completed"], counts["failed"]) != files:
            problems.append(
                f"its counts are {counts}, but of {lines.num} lines its files have {files[1]} and {files[2]}"
            )
        billed = _patiently(lambda: self.stack.query(_LEDGER, batch["id"])[0])
        answered = (found.num_answers, *found.num_tokens)
        if billed != answered:
            problems.append(f"billed answers and tokens are {billed}, but its file has {answered}")
        return problems


class PatientClient:
    """Retries each API call until it is answered, as a user's script would."""

    def __init__(self, base_url: str, key: str) -> None:
        headers = {"Authorization": f"Bearer {key}"}
        self._http = httpx.Client(base_url=base_url, headers=headers, timeout=_TIMEOUT_SECONDS, trust_env=False)

    def call(self, method: str, path: str, *, is_done: Sequence[int] = (), **options: Any) -> dict[str, Any]:
        """Return the response body; statuses in `is_done` count as success."""
        return dict(self._answer(method, path, is_done, options).json())

    def content(self, file_id: str) -> bytes:
        """Return a file."""
        return self._answer("GET", f"/files/{file_id}/content", (), {}).content

    def _answer(self, method: str, path: str, is_done: Sequence[int], options: dict[str, Any]) -> httpx.Response:
        while True:
            with suppress(httpx.TransportError):
                response = self._http.request(method, path, **options)
                if response.is_success or response.status_code in is_done:
                    return response
                if response.status_code < 500 and response.status_code not in (408, 429):
                    raise RuntimeError(f"{method} {path} returned {response.status_code}: {response.text[:300]}")
            time.sleep(_PAUSE_SECONDS)


@lru_cache(maxsize=1)
def _tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(MODEL_FOLDER / "tokenizer.json"))


def count_tokens(prompt: str) -> int:
    """Return the number of the model's tokens in a prompt."""
    return len(_tokenizer().encode(prompt).ids)


def _patiently(ask: Callable[[], Any]) -> Any:
    while True:
        with suppress(psycopg.Error):
            return ask()
        time.sleep(_PAUSE_SECONDS)
