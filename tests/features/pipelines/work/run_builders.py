"""A tenant with two stores whose runs are carried out in one process, which can be killed between effects."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from sqlalchemy import select, text
from sqlalchemy.orm import Session, sessionmaker

from features.pipelines import definitions, lifecycle, stores
from features.pipelines.external.store import ExternalStore, Found
from features.pipelines.scheduling import schedules
from features.pipelines.states import TERMINAL_RUN_STATES, RunState
from features.pipelines.tables import Run
from jobs.batches import sweeps
from jobs.batches.finalisation import finalise_batch
from jobs.batches.validation import validate_batch
from jobs.chunks import claiming, covering, leasing, waiting
from jobs.chunks.recording import LineResult
from jobs.lines.output_lines import error_line, output_line
from jobs.lines.reading import custom_id_of
from jobs.storage import Storage
from jobs.tables import Batch
from tests.all_settings import Settings
from tests.effects import Effects, WatchedMaker, WatchedStorage
from tests.flows.advancers import Runs, runs_of

SCHEMA = {
    "type": "object",
    "properties": {"length": {"type": "integer"}},
    "required": ["length"],
    "additionalProperties": False,
}
_numbers = itertools.count()


@dataclass
class House:
    """A tenant with two stores, and answers to its lines."""

    maker: sessionmaker[Session]
    storage: Storage
    settings: Settings
    tenant_id: str
    documents: Path
    results: Path
    fails: set[str] = field(default_factory=set)
    """Prompts that get an error."""
    thoughts: dict[str, str] = field(default_factory=dict)
    """By prompt, where an answer has some."""

    def make(self, **changes: Any) -> str:
        """Make a pipeline of one step; return its id."""
        name = f"p{next(_numbers)}"
        definition = {"steps": [step()]} | changes
        with self.maker.begin() as session:
            made = definitions.create_pipeline(session, self.tenant_id, name, definition, self.settings)
            return made.id

    def trigger(self, pipeline_id: str) -> str:
        with self.maker.begin() as session:
            return schedules.trigger(session, self.tenant_id, pipeline_id, settings=self.settings).id

    def runs(self, **given: Any) -> Runs:
        return runs_of(self.maker, self.storage, self.settings, **given)

    def finish(self, run_id: str) -> Run:
        """Let a control worker and engines work until the run has ended."""
        for _ in range(20):
            with self.maker.begin() as session:
                lifecycle.start_queued(session)
                session.execute(text("UPDATE flow SET look_at = NULL"))
            self.runs().advance(run_id)
            self.answer_all()
            run = self.run(run_id)
            if RunState(run.state) in TERMINAL_RUN_STATES:
                return run
        raise AssertionError(f"it does not end: {run.state} {run.reason}")

    def run(self, run_id: str) -> Run:
        with self.maker() as session:
            return session.get_one(Run, run_id)

    def answer_all(self) -> None:
        """Act as control workers and GPU workers for the open batches."""
        with self.maker() as session:
            open_batches = session.scalars(select(Batch.id).where(Batch.state == "validating")).all()
        for batch_id in open_batches:
            validate_batch(self.maker, self.storage, batch_id, settings=self.settings)
        while self._answer_chunk():
            pass
        with self.maker.begin() as session:
            sweeps.finish_ready(session)
            ending = session.scalars(select(Batch.id).where(Batch.state.in_(["finalizing", "cancelling"]))).all()
        for batch_id in ending:
            finalise_batch(self.maker, self.storage, batch_id, settings=self.settings)

    def _answer_chunk(self) -> bool:
        with self.maker.begin() as session:
            claim = claiming.claim_next(session, model="demo", worker_id="w", lease=self.settings.lease)
            if claim is None:
                return False
            results = [self._answer(claim.batch_id, line) for line in claim.split(claim.read(self.storage))]
            leasing.flush(session, claim, results, flush_no=0, lease=self.settings.lease)
            leasing.complete(session, claim)
        return True

    def answer_some(self, *, costs: list[int], used: int) -> None:
        """Act as a GPU worker for one chunk: answer the lines that have room, if they may use `costs` tokens."""
        with self.maker() as session:
            [batch_id] = session.scalars(select(Batch.id).where(Batch.state == "validating")).all()
        validate_batch(self.maker, self.storage, batch_id, settings=self.settings)
        with self.maker.begin() as session:
            claim = claiming.claim_next(session, model="demo", worker_id="w", lease=self.settings.lease)
            assert claim is not None
            fits = covering.cover(session, claim, costs, covered=0).fits
            lines = [line for line, does in zip(claim.split(claim.read(self.storage)), fits, strict=True) if does]
            results = [replace(self._answer(batch_id, line), input_tokens=used, output_tokens=0) for line in lines]
            leasing.flush(session, claim, results, flush_no=0, lease=self.settings.lease, covered=0)
            least = min(cost for cost, does in zip(costs, fits, strict=True) if not does)
            waiting.lay_aside(session, claim, tokens=least)

    def _answer(self, batch_id: str, line: Any) -> LineResult:
        custom_id, prompt = custom_id_of(line.content), json.loads(line.content)["body"]["messages"][-1]["content"]
        if prompt in self.fails:
            failed = error_line(batch_id, line.line_no, custom_id, code="engine_failure", message="it went wrong")
            return LineResult(line_no=line.line_no, line=failed, status_code=None)
        message = {"role": "assistant", "content": json.dumps({"length": len(prompt)})}
        if prompt in self.thoughts:
            message["reasoning_content"] = self.thoughts[prompt]
        body = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
        done = output_line(batch_id, line.line_no, custom_id, status_code=200, body=body)
        return LineResult(line_no=line.line_no, line=done, status_code=200, input_tokens=3, output_tokens=2)

    def put(self, key: str, *rows: dict[str, Any]) -> None:
        path = self.documents / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def out(self, folder: str = "out") -> dict[str, list[dict[str, Any]]]:
        """Return the rows of each published file."""
        files = sorted((self.results / folder).glob("*.jsonl"))
        return {path.name: [json.loads(line) for line in path.read_text().splitlines()] for path in files}

    def success(self, folder: str = "out") -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.results / folder / "_SUCCESS").read_text())
        return found


def step(**fields: Any) -> dict[str, Any]:
    return {
        "name": "fields",
        "source": {"store": "documents", "keys": "in/*.jsonl"},
        "prompt": "Measure {{ text }}",
        "schema": SCHEMA,
        "model": "demo",
        "parameters": {"max_tokens": 8},
        "output": {"store": "results", "keys": "out/part-{n}.jsonl"},
    } | fields


class WatchedStore:
    """A tenant's store; each change of it is an effect."""

    def __init__(self, inner: ExternalStore, effects: Effects) -> None:
        self._inner, self._effects = inner, effects

    def list(self, prefix: str) -> Iterator[Found]:
        return self._inner.list(prefix)

    def open(self, key: str) -> IO[bytes]:
        return self._inner.open(key)

    def read_small(self, key: str, max_bytes: int) -> bytes | None:
        return self._inner.read_small(key, max_bytes)

    @contextmanager
    def create(self, key: str) -> Iterator[Any]:
        with self._inner.create(key) as file:
            yield file
            self._effects.before(f"create {key.rpartition('/')[2]}")

    def move(self, key: str, to: str) -> bool:
        self._effects.before("move")
        return self._inner.move(key, to)

    def delete(self, key: str) -> None:
        self._effects.before("delete")
        self._inner.delete(key)

    def clear(self, folder: str) -> None:
        self._effects.before("clear")
        self._inner.clear(folder)


def watched(house: House, effects: Effects) -> Runs:
    """Return a control worker with watched effects."""
    maker: Any = WatchedMaker(house.maker, effects)
    return runs_of(
        maker,
        WatchedStorage(house.storage, effects),
        house.settings,
        hold_sessions=house.maker,
        open_store=lambda *given, **options: WatchedStore(stores.open_registered(*given, **options), effects),
    )


def carry_out(house: House, run_id: str, runs: Runs) -> None:
    """Advance a run to its end."""
    for _ in range(3):
        with house.maker.begin() as session:
            lifecycle.start_queued(session)
        runs.advance(run_id)
        house.answer_all()
