"""Runs on a real database: rows in, a batch, rows out; killed between any two effects, each is there once."""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import pytest
from sqlalchemy import select, text
from sqlalchemy.orm import Session, sessionmaker

from jobs.audit import audit
from jobs.batches import sweeps
from jobs.batches.finalisation import finalise_batch
from jobs.batches.validation import validate_batch
from jobs.chunks import leasing
from jobs.chunks.recording import LineResult
from jobs.lines.output_lines import error_line, output_line
from jobs.lines.reading import custom_id_of
from jobs.pipelines import definitions, lifecycle, schedules, steps, stores
from jobs.pipelines.advancing import Runs
from jobs.pipelines.external import ExternalStore, Found
from jobs.settings import Settings
from jobs.states import TERMINAL_RUN_STATES, RunState
from jobs.storage import ObjectWriter, Storage
from jobs.tables import Batch, Run, RunStep, Tenant
from workers.pipelines.due_runs import DueRuns

SCHEMA = {
    "type": "object",
    "properties": {"length": {"type": "integer"}},
    "required": ["length"],
    "additionalProperties": False,
}
_CLAIM_ENDS = "UPDATE run SET claimed_until = clock_timestamp() - interval '1 s' WHERE claimed_by <> ''"
_numbers = itertools.count()


@dataclass
class House:
    """A tenant with two stores, and a hand that answers lines."""

    maker: sessionmaker[Session]
    storage: Storage
    settings: Settings
    tenant_id: str
    documents: Path
    results: Path
    fails: set[str] = field(default_factory=set)
    """Prompts that get an error."""

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
        return Runs(self.maker, self.storage, self.settings, **given)

    def finish(self, run_id: str) -> Run:
        """Let a control worker and engines work until the run has ended."""
        for _ in range(20):
            with self.maker.begin() as session:
                lifecycle.start_queued(session)
                session.execute(text("UPDATE run SET look_at = NULL"))
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
        """Be control workers and GPU workers for the open batches."""
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
            claim = leasing.claim_next(session, model="demo", worker_id="w", lease=self.settings.lease)
            if claim is None:
                return False
            results = [self._answer(claim.batch_id, line) for line in claim.split(claim.read(self.storage))]
            leasing.flush(session, claim, results, flush_no=0, lease=self.settings.lease)
            leasing.complete(session, claim)
        return True

    def _answer(self, batch_id: str, line: Any) -> LineResult:
        custom_id, prompt = custom_id_of(line.content), json.loads(line.content)["body"]["messages"][-1]["content"]
        if prompt in self.fails:
            failed = error_line(batch_id, line.line_no, custom_id, code="engine_failure", message="it went wrong")
            return LineResult(line_no=line.line_no, line=failed, status_code=None)
        message = {"role": "assistant", "content": json.dumps({"length": len(prompt)})}
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


@pytest.fixture
def house(maker: sessionmaker[Session], storage: Storage, settings: Settings, tenant: Tenant, tmp_path: Path) -> House:
    folders = [tmp_path / "documents", tmp_path / "results"]
    with maker.begin() as session:
        session.execute(text("UPDATE model SET input_price_micros = 1000000, output_price_micros = 1000000"))
        for folder in folders:
            folder.mkdir()
            stores.add_store(
                session, tenant.id, folder.name, f"file://{folder}", options={}, is_writable=folder.name == "results"
            )
    return House(maker, storage, settings, tenant.id, documents=folders[0], results=folders[1])


def test_rows_go_through_a_batch_and_come_out_with_their_answers(house: House) -> None:
    house.put("in/a.jsonl", {"text": "one"}, {"text": "three"})
    house.put("in/b.jsonl", {"text": "seven", "id": 7})
    pipeline_id = house.make(steps=[step(output={"store": "results", "keys": "out/part-{n}.jsonl", "rows_a_file": 2})])
    run = house.finish(house.trigger(pipeline_id))
    assert (run.state, run.reason) == (RunState.SUCCEEDED, None)
    assert house.out() == {
        "part-00000.jsonl": [
            {"text": "one", "length": 11, "error": None},
            {"text": "three", "length": 13, "error": None},
        ],
        "part-00001.jsonl": [{"text": "seven", "id": 7, "length": 13, "error": None}],
    }
    said = house.success()
    assert (said["run_id"], [file["rows"] for file in said["files"]]) == (run.id, [2, 1])
    assert not (house.results / "out" / "_temporary" / run.id).exists()
    with house.maker() as session:
        batch = session.scalars(select(Batch)).one()
        assert batch.request_metadata == {"run_id": run.id, "step": "fields"}
    with house.maker() as session:
        assert audit(session) == []


def test_a_row_that_cannot_be_rendered_or_answered_keeps_its_row_with_an_error(house: House) -> None:
    house.fails = {"Measure bad"}
    house.put("in/a.jsonl", {"text": "one"}, {"other": 1}, {"text": "bad"})
    run = house.finish(house.trigger(house.make()))
    assert run.state == RunState.SUCCEEDED
    [rows] = house.out().values()
    assert [row.get("length") for row in rows] == [11, None, None]
    assert re.search("line 1.*text", rows[1]["error"])
    assert rows[2]["error"] == "it went wrong (engine_failure)"
    with house.maker() as session:
        assert session.scalars(select(RunStep)).one().num_failed == 2


def test_rows_without_answers_fail_a_run_that_wants_that_and_resumed_it_does_them_anew(house: House) -> None:
    house.fails = {"Measure bad"}
    house.put("in/a.jsonl", {"text": "one"}, {"text": "bad"})
    run = house.finish(house.trigger(house.make(steps=[step(on_error="fail")])))
    assert run.state == RunState.FAILED
    assert run.reason == (
        "1 of 2 rows of step 'fields' have no answer, and its on_error is fail. The first: row-000000002: it went "
        "wrong (engine_failure)"
    )
    assert house.out() == {}
    house.fails = set()
    with house.maker.begin() as session:
        lifecycle.resume_run(session, house.tenant_id, run.id)
    assert house.finish(run.id).state == RunState.SUCCEEDED
    assert [len(rows) for rows in house.out().values()] == [2]


def test_the_answers_of_a_step_reach_the_next_one_joined_by_their_rows(house: House) -> None:
    house.fails = {"Measure bad"}
    house.put("in/a.jsonl", {"text": "one"}, {"text": "bad"}, {"text": "three"})
    second = step(
        name="words",
        source={"step": "fields"},
        prompt="{{ text }} has {{ previous.json.length }} of {{ previous.text }} on {{ run.date }}",
        output={"store": "results", "keys": "words/{date}/part-{n}.jsonl"},
    )
    pipeline_id = house.make(steps=[step(output=None), second])
    run = house.finish(house.trigger(pipeline_id))
    date = f"{run.scheduled_for:%Y-%m-%d}"
    [rows] = house.out(f"words/{date}").values()
    lengths = {"one": 11, "three": 13}
    prompts = {text: f'{text} has {size} of {{"length": {size}}} on {date}' for text, size in lengths.items()}
    assert rows == [{"text": text, "length": len(prompt), "error": None} for text, prompt in prompts.items()]


def test_a_run_takes_only_what_no_successful_one_took_as_it_is_now(house: House) -> None:
    source = {"store": "documents", "keys": "in/*.jsonl", "take": "new_since_last_success"}
    output = {"store": "results", "keys": "{run}/part-{n}.jsonl"}
    pipeline_id = house.make(steps=[step(source=source, output=output, on_error="fail")])

    def taken() -> tuple[str, list[str]]:
        run = house.finish(house.trigger(pipeline_id))
        return run.state, [row["text"] for rows in house.out(run.id).values() for row in rows]

    house.put("in/a.jsonl", {"text": "a"})
    house.put("in/b.jsonl", {"text": "b"})
    assert taken() == ("succeeded", ["a", "b"])
    assert taken() == ("succeeded", [])
    house.put("in/b.jsonl", {"text": "b2"})
    house.put("in/c.jsonl", {"text": "c"})
    house.fails = {"Measure c"}
    assert taken() == ("failed", [])
    house.fails = set()
    assert taken() == ("succeeded", ["b2", "c"]), "a failed run has taken nothing"


def test_a_run_for_the_same_moment_takes_the_place_of_the_earlier_one(house: House) -> None:
    house.put("in/a.jsonl", *({"text": str(number)} for number in range(5)))
    two = step(output={"store": "results", "keys": "out/part-{n}.jsonl", "rows_a_file": 2})
    pipeline_id = house.make(steps=[two])
    house.finish(house.trigger(pipeline_id))
    assert len(house.out()) == 3
    (house.results / "out" / "readme.txt").write_text("mine")
    house.put("in/a.jsonl", {"text": "x"})
    second = house.finish(house.trigger(pipeline_id))
    assert [row["text"] for rows in house.out().values() for row in rows] == ["x"]
    assert house.success()["run_id"] == second.id
    assert (house.results / "out" / "readme.txt").exists(), "what is not of the output stays"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"max_tokens": 5}, r"Step 'fields' needs about \d+ tokens, 0 are used, and max_tokens of the pipeline is 5"),
        ({"max_cost": "0.000001"}, r"would cost about 0\.0\d+, 0\.00 are used, and max_cost of the pipeline is"),
        (
            {"steps": [step(source={"store": "nowhere", "keys": "a"})]},
            "There is no store 'nowhere' for you; there are: documents",
        ),
        ({"steps": [step(output={"store": "documents", "keys": "o/{n}.jsonl"})]}, "for reading only"),
        ({"steps": [step(model="gone")]}, "The model 'gone' does not exist; known are: demo"),
    ],
)
def test_a_run_that_cannot_be_ends_with_one_sentence_and_spends_nothing(
    house: House, changes: dict[str, Any], said: str
) -> None:
    house.put("in/a.jsonl", {"text": "one"})
    run = house.finish(house.trigger(house.make(**changes)))
    assert run.state == RunState.FAILED
    assert re.search(said, run.reason or "")
    assert house.out() == {}
    with house.maker() as session:
        is_begun = session.scalars(select(RunStep)).first() is not None
    assert is_begun == bool(list(house.storage.iter_objects())), "what was written for a refused step is deleted"


def test_what_a_run_used_before_it_was_resumed_counts_against_its_caps(house: House) -> None:
    house.fails = {"Measure bad"}
    house.put("in/a.jsonl", {"text": "one"}, {"text": "bad"})
    run = house.finish(house.trigger(house.make(steps=[step(on_error="fail")], max_tokens=10**6)))
    assert run.state == RunState.FAILED
    with house.maker() as session:
        assert steps.used(session, run) == (5, 5_000_000)
    with house.maker.begin() as session:
        lifecycle.resume_run(session, house.tenant_id, run.id)
    house.fails = set()
    run = house.finish(run.id)
    assert run.state == RunState.SUCCEEDED
    with house.maker() as session:
        assert steps.used(session, run)[0] == 15


def test_a_step_writes_no_more_than_a_file_may_have(house: House) -> None:
    house.put("in/a.jsonl", *({"text": str(number)} for number in range(100)))
    run_id = house.trigger(house.make())
    house.settings = house.settings.model_copy(update={"max_file_bytes": 2000})
    run = house.finish(run_id)
    assert run.state == RunState.FAILED
    assert "have more than 2,000 bytes, which is as many as a file may have" in (run.reason or "")
    assert list(house.storage.iter_objects()) == []


def test_a_row_that_cannot_be_kept_is_a_row_with_an_error(house: House) -> None:
    house.put("in/a.jsonl", {"text": "one"})
    with (house.documents / "in/a.jsonl").open("a") as file:
        file.write('{"text": "deep", "more": ' + "[" * 300 + "]" * 300 + "}\n")
    run = house.finish(house.trigger(house.make()))
    assert (run.state, run.reason) == (RunState.SUCCEEDED, None)
    [rows] = house.out().values()
    assert rows[0] == {"text": "one", "length": 11, "error": None}
    assert "cannot be kept as JSON" in rows[1]["error"]


def test_a_file_whose_name_is_not_utf8_ends_the_run_with_a_sentence_where_it_is_meant(house: House) -> None:
    house.put("in/a.jsonl", {"text": "one"})
    os.close(os.open(os.fsencode(house.documents) + b"/in/caf\xe9.csv", os.O_CREAT | os.O_WRONLY))
    assert house.finish(house.trigger(house.make())).state == RunState.SUCCEEDED
    source = {"store": "documents", "keys": "in/*", "take": "new_since_last_success"}
    output = {"store": "results", "keys": "{run}/part-{n}.jsonl"}
    run = house.finish(house.trigger(house.make(steps=[step(source=source, output=output)])))
    assert run.state == RunState.FAILED
    assert re.search(r"'in/caf\\udce9.csv' is not UTF-8; rename it", run.reason or "")


def test_an_unexpected_error_ends_a_run_once_it_was_tried_often_enough(house: House) -> None:
    def defect(*args: Any, **options: Any) -> ExternalStore:
        raise RuntimeError("a defect")

    house.put("in/a.jsonl", {"text": "one"})
    run_id = house.trigger(house.make())
    with house.maker.begin() as session:
        lifecycle.start_queued(session)
    for num_tries in range(1, 7):
        assert house.runs(open_store=defect).advance(run_id)
        assert house.run(run_id).num_tries == num_tries
    run = house.run(run_id)
    assert run.state == RunState.FAILED
    assert "unexpected error" in (run.reason or "")


@pytest.mark.parametrize("num_asked", [1, 2, 5, 20])
def test_a_worker_that_is_to_end_gives_its_run_up_at_once_and_another_goes_on(house: House, num_asked: int) -> None:
    asked = itertools.count(1)
    house.put("in/a.jsonl", {"text": "one"})
    run_id = house.trigger(house.make())
    with house.maker.begin() as session:
        lifecycle.start_queued(session)
    runs = house.runs(is_stopping=lambda: next(asked) >= num_asked)
    is_given_up = not runs.advance(run_id)
    assert is_given_up == (next(asked) > num_asked)
    run = house.run(run_id)
    assert (run.claimed_by, run.num_tries, run.reason) == (None, 0, None)
    assert house.finish(run_id).state == RunState.SUCCEEDED
    assert [len(rows) for rows in house.out().values()] == [1]


def test_a_cancelled_run_cancels_its_batch_and_ends_once_that_has(house: House) -> None:
    house.put("in/a.jsonl", {"text": "one"})
    run_id = house.trigger(house.make())
    with house.maker.begin() as session:
        lifecycle.start_queued(session)
    house.runs().advance(run_id)
    with house.maker.begin() as session:
        lifecycle.cancel_run(session, house.tenant_id, run_id, reason="by hand")
    house.runs().advance(run_id)
    with house.maker() as session:
        assert session.scalars(select(Batch.state)).one() == "cancelling"
    run = house.finish(run_id)
    assert (run.state, run.reason) == (RunState.CANCELLED, "by hand")


def test_a_store_that_is_gone_ends_the_run_with_a_sentence_and_resumed_it_goes_on(house: House) -> None:
    house.put("in/a.jsonl", {"text": "one"})
    run_id = house.trigger(house.make())
    house.documents.rename(house.documents.with_name("away"))
    run = house.finish(run_id)
    assert run.state == RunState.FAILED
    assert run.reason == "The folder of the store 'documents' is not there; ask your operator."
    house.documents.with_name("away").rename(house.documents)
    with house.maker.begin() as session:
        lifecycle.resume_run(session, house.tenant_id, run_id)
    assert house.finish(run_id).state == RunState.SUCCEEDED


# --- killed between any two effects ----------------------------------------------------------------------------------


class Killed(BaseException):
    """What runs dies here: no `except` or `finally` of ours may mend anything in the database."""


class Effects:
    """Counts effects, and does something before one of them."""

    def __init__(self, at: int | str | None = None, do: Callable[[], None] | None = None) -> None:
        """`at` is a number, or what is done for the first time."""
        self.seen: list[str] = []
        self._at, self._do = at, do

    def before(self, what: str) -> None:
        is_first = what not in self.seen
        self.seen.append(what)
        if self._at == len(self.seen) or (self._at == what and is_first):
            if self._do is None:
                raise Killed(what)
            self._do()


class WatchedMaker:
    """Sessions whose commits are effects, where they write."""

    def __init__(self, inner: sessionmaker[Session], effects: Effects) -> None:
        self._inner, self._effects = inner, effects
        self.kw = inner.kw

    @contextmanager
    def begin(self) -> Iterator[Session]:
        with self._inner.begin() as session:
            yield session
            session.flush()
            has_written = session.scalar(text("SELECT pg_current_xact_id_if_assigned() IS NOT NULL"))
            if has_written:
                self._effects.before("commit")
        if has_written:
            self._effects.before("committed")


class WatchedStorage(Storage):
    def __init__(self, inner: Storage, effects: Effects) -> None:
        self._inner, self._effects = inner, effects

    @contextmanager
    def writer(self, key: str) -> Iterator[ObjectWriter]:
        with self._inner.writer(key) as writer:
            yield writer
            self._effects.before("object")

    def delete(self, key: str) -> None:
        self._inner.delete(key)

    def size(self, key: str) -> int:
        return self._inner.size(key)

    def iter_chunks(self, key: str, *given: Any, **options: Any) -> Iterator[bytes]:
        return self._inner.iter_chunks(key, *given, **options)


class WatchedStore:
    """A tenant's store whose every change is an effect."""

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
    """Return a control worker whose effects are watched."""
    maker: Any = WatchedMaker(house.maker, effects)
    return Runs(
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


def kept(house: House, folder: str, run_id: str) -> None:
    """All is as if nobody had died: one batch, each row once, one _SUCCESS, nothing left beside."""
    assert house.run(run_id).state == RunState.SUCCEEDED
    with house.maker() as session:
        batches = session.scalars(select(Batch)).all()
        assert len([batch for batch in batches if (batch.request_metadata or {})["run_id"] == run_id]) == 1
        assert session.scalars(text("SELECT done_at IS NOT NULL FROM dataset_file")).all() == [True]
        session.execute(text("DELETE FROM dataset_file"))
        session.commit()
    with house.maker() as session:
        assert audit(session) == []
    assert house.out(folder) == {
        f"part-{number:05d}.jsonl": [{"text": text, "length": 8 + len(text), "error": None}]
        for number, text in enumerate(["one", "three"])
    }
    assert [file["rows"] for file in house.success(folder)["files"]] == [1, 1]


def new_run(house: House) -> tuple[str, str]:
    folder = f"kill-{next(_numbers)}"
    source = {"store": "documents", "keys": "in/*.jsonl", "take": "new_since_last_success"}
    output = {"store": "results", "keys": f"{folder}/{{run}}/part-{{n}}.jsonl", "rows_a_file": 1}
    run_id = house.trigger(house.make(steps=[step(source=source, output=output)]))
    return f"{folder}/{run_id}", run_id


@pytest.mark.timeout(600)
def test_killed_between_any_two_effects_a_run_is_done_once(house: House) -> None:
    house.put("in/a.jsonl", {"text": "one"}, {"text": "three"})
    effects = Effects()
    folder, run_id = new_run(house)
    carry_out(house, run_id, watched(house, effects))
    kept(house, folder, run_id)
    assert not (house.results / folder / "_temporary" / run_id).exists()
    wanted = {"commit", "object", "create part-00001.jsonl", "create _SUCCESS", "move", "delete", "clear"}
    assert wanted <= {*effects.seen}
    for at in range(1, len(effects.seen) + 1):
        folder, run_id = new_run(house)
        dying = Effects(at)
        with pytest.raises(Killed):
            carry_out(house, run_id, watched(house, dying))
        with house.maker.begin() as session:
            session.execute(text(_CLAIM_ENDS))
        house.finish(run_id)
        kept(house, folder, run_id)


def test_a_worker_that_was_taken_for_dead_adds_nothing(house: House) -> None:
    house.put("in/a.jsonl", {"text": "one"}, {"text": "three"})
    for what in ("object", "committed", "create part-00001.jsonl", "move", "clear"):
        folder, run_id = new_run(house)

        def take_over(run_id: str = run_id) -> None:
            with house.maker.begin() as session:  # as another that takes it: the first one's thread renews it no more
                session.execute(text("UPDATE run SET claimed_by = NULL, claimed_until = NULL"))
            house.finish(run_id)

        slow = Effects(what, take_over)
        carry_out(house, run_id, watched(house, slow))
        assert what in slow.seen
        kept(house, folder, run_id)


def test_due_runs_go_on_one_of_each_tenant_until_they_end(house: House) -> None:
    house.put("in/a.jsonl", {"text": "one"})
    run_id = house.trigger(house.make())
    due = DueRuns(house.maker, advance=house.runs().advance, look_seconds=0.05)
    due.start()
    try:
        for _ in range(2000):
            house.answer_all()
            if RunState(house.run(run_id).state) in TERMINAL_RUN_STATES:
                break
    finally:
        due.stop()
    assert house.run(run_id).state == RunState.SUCCEEDED
