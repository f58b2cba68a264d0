"""The workers' part in an extraction's batches, without engine and processes: texts are read, and a model copies.

The model answers a field with the first uncovered text after its name in the document, and a list with all of them; it
leaves `FLAKY` out the first time. Asked for every value it lists the text after any name. An answer of several fields
is truncated in the first one that is `ENDLESS`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import orjson
from sqlalchemy import select, text
from sqlalchemy.orm import Session, sessionmaker

from features.documents.extraction.course.grounding_child import ground, packed, packed_found
from features.documents.extraction.documents.limits import Limits, Progress
from features.documents.extraction.documents.parsing import parse
from features.documents.extraction.errors import DocumentError
from features.documents.extraction.passes.covered_text import COVER
from features.retrieval.searching import Searcher
from flows.advancing import FlowAdvancer
from flows.due import find_due
from flows.tables import Flow, FlowNode
from jobs import files
from jobs.batches import sweeps
from jobs.batches.finalisation import finalise_batch
from jobs.batches.validation import validate_batch
from jobs.chunks import claiming, leasing
from jobs.chunks.recording import LineResult
from jobs.errors import InputError
from jobs.lines.document_bodies import GROUND_ENDPOINT, READ_ENDPOINT, ground_request
from jobs.lines.output_lines import error_line, output_line
from jobs.lines.passage_bodies import FIND_ENDPOINT, find_request
from jobs.states import TERMINAL_BATCH_STATES
from jobs.storage import Storage
from jobs.tables import Batch
from tests.all_settings import Settings
from tests.flows.advancers import fills_of
from workers.preparing.answer_lines import answer_lines
from workers.preparing.gathering import Gathering
from workers.preparing.passages import PassageAnswers
from workers.preparing.results import refused

LEASE = timedelta(seconds=60)
FLAKY = "FLAKY"
ENDLESS = "ENDLESS"


class LineFailure(Exception):
    """A line whose result is an error."""


@dataclass
class Answering:
    """Validates, runs and finalizes every open batch of an extraction or an index, repeatedly."""

    maker: sessionmaker[Session]
    storage: Storage
    settings: Settings
    num_read: int = 0
    asked: list[Mapping[str, Any]] = field(default_factory=list)
    """Bodies of all chat completions."""
    expires_after: int | None = None
    """The next batch expires once so many of its lines are answered."""
    chunks_a_turn: int | None = None
    """How many chunks of each batch run each time; None: all."""

    def work_off(self) -> None:
        with self.maker() as session:
            ended = [state.value for state in TERMINAL_BATCH_STATES]
            # a database may have batches of others
            is_open = Batch.id.in_(select(FlowNode.batch_id)), Batch.state.not_in(ended), Batch.held_by.is_(None)
            batch_ids = session.scalars(select(Batch.id).where(*is_open).order_by(Batch.id)).all()
        for batch_id in batch_ids:
            self._run(batch_id)
        self._fill()

    def _fill(self) -> None:
        """Advance what looks up passages for batches."""
        with self.maker() as session:
            due = find_due(session, ["fill"])
        for one in due:
            fills_of(self.maker, self.storage, self.settings).advance(one.id)

    def take_turns(self, session: Session, control: FlowAdvancer[Any, Any], work: Flow) -> None:
        """Alternate with control workers until a flow has ended."""
        for _ in range(12 if self.chunks_a_turn is None else 60):
            control.advance(work.id)
            session.refresh(work)
            if work.ended_at is not None:
                return
            self.work_off()
        raise AssertionError(f"it is still {work.state}: {work.reason}")

    def _run(self, batch_id: str) -> None:
        validate_batch(self.maker, self.storage, batch_id, settings=self.settings)
        with self.maker() as session:
            batch = session.get_one(Batch, batch_id)
            query = text("SELECT id FROM chunk WHERE batch_id = :id AND state = 'ready' ORDER BY id")
            chunk_ids = session.scalars(query, {"id": batch_id}).all()
        for chunk_id in chunk_ids[: self.chunks_a_turn]:
            with self.maker.begin() as session:
                claim = claiming.claim_chunk(session, chunk_id, worker_id="worker", lease=LEASE)
                assert claim is not None
            lines = claim.split(claim.read(self.storage))[: self.expires_after]
            results = [self._result(batch, line.line_no, orjson.loads(line.content or b"")) for line in lines]
            with self.maker.begin() as session:
                leasing.flush(session, claim, results, flush_no=1, lease=LEASE)
                (leasing.complete if self.expires_after is None else leasing.release)(session, claim)
        if self.expires_after is not None:
            self.expires_after = None
            self.expire(batch_id)
        with self.maker.begin() as session:
            sweeps.finish_ready(session)
        finalise_batch(self.maker, self.storage, batch_id, settings=self.settings)

    def expire(self, batch_id: str) -> None:
        """Let the window of a batch end."""
        with self.maker.begin() as session:
            session.execute(text("UPDATE batch SET expires_at = now() WHERE id = :id"), {"id": batch_id})
        with self.maker.begin() as session:
            assert sweeps.expire_overdue(session) == [batch_id]

    def _result(self, batch: Batch, line_no: int, line: Mapping[str, Any]) -> LineResult:
        try:
            body = self._answer(batch, line["body"])
        except (DocumentError, LineFailure) as error:
            code = str(getattr(error, "code", "failed"))
            failed = error_line(batch.id, line_no, line["custom_id"], code=code, message=str(error))
            return LineResult(line_no=line_no, line=failed, status_code=None)
        except InputError as error:
            return refused(batch.id, line_no, line["custom_id"], error)
        done = output_line(batch.id, line_no, line["custom_id"], status_code=200, body=body)
        num_in, num_out = (7, 3) if "usage" in body else (0, 0)
        return LineResult(line_no=line_no, line=done, status_code=200, input_tokens=num_in, output_tokens=num_out)

    def _answer(self, batch: Batch, body: Mapping[str, Any]) -> dict[str, Any]:
        if batch.endpoint == READ_ENDPOINT:
            return self._read(batch.tenant_id, body)
        if batch.endpoint == GROUND_ENDPOINT:
            return self._ground(batch.tenant_id, body)
        if batch.endpoint == FIND_ENDPOINT:
            return self._find(batch.tenant_id, body)
        self.asked.append(body)
        return completion(body)

    def _read(self, tenant_id: str, body: Mapping[str, Any]) -> dict[str, Any]:
        self.num_read += 1
        with self.maker() as session:
            file = files.find_kept(session, tenant_id, body["file_id"])
        if file is None:
            raise LineFailure("the file was deleted")
        content = b"".join(self.storage.iter_chunks(file.object_key))
        sha256 = hashlib.sha256(content).hexdigest()
        document = parse(content, body["name"], Limits())
        key = f"{tenant_id}/documents/v1/{sha256}.doc"
        self.storage.put(key, document.to_bytes())
        return {
            "sha256": sha256,
            "object_key": key,
            "parser": document.parser,
            "num_pages": len(document.pages),
            "num_characters": len(document.text),
        }

    def _ground(self, tenant_id: str, body: Mapping[str, Any]) -> dict[str, Any]:
        request = ground_request(body)
        named = {"number": request.number, "sha256": request.sha256}
        plan, answers = self._object(request.plan_key), answer_lines(self.maker, request, tenant_id=tenant_id)
        if request.object_key is not None:
            content = packed(named, plan=plan, answers=answers, document=self._object(request.object_key))
        else:
            gathering = Gathering(sessions=self.maker, storage=self.storage)
            found = gathering.passages(self._object(str(request.found_key)))
            stored = gathering.stored(found, tenant_id)
            content = packed_found(named, plan=plan, answers=answers, found=found, stored=stored)
        answer: dict[str, Any] = orjson.loads(ground(content, request.name, Limits(), Progress()))
        return answer

    def _find(self, tenant_id: str, body: Mapping[str, Any]) -> dict[str, Any]:
        answers = PassageAnswers(sessions=self.maker, searcher=Searcher(self.storage, max_bytes=0))
        return answers.answer(find_request(body), tenant_id=tenant_id)

    def _object(self, key: str) -> bytes:
        return b"".join(self.storage.iter_chunks(key))


def completion(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body of the model's response to that of a line. Raises LineFailure."""
    prompt = body["messages"][-1]["content"]
    if "CRASH" in prompt:
        raise LineFailure("the engine failed")
    is_second = "Look again" in prompt
    asked = body["response_format"]["json_schema"]
    stated = _stated(prompt)
    if asked["name"] == "values":
        found: dict[str, Any] = {"values": [{"kind": "text", "value": value, "quote": value} for _, value in stated]}
    else:
        found = {
            name: _items(stated, name) if one.get("type") == "array" else _value(stated, name, is_second=is_second)
            for name, one in asked["schema"]["properties"].items()
        }
    content = json.dumps(found)
    if len(found) > 1:
        content = content.partition(ENDLESS)[0]
    return {
        "object": "chat.completion",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10},
    }


def _items(stated: list[tuple[str, str]], name: str) -> list[dict[str, str]] | None:
    return [{"value": value, "quote": value} for label, value in stated if label == name] or None


def _value(stated: list[tuple[str, str]], name: str, *, is_second: bool) -> dict[str, str] | None:
    value = next((value for label, value in stated if label == name), None)
    if value is None:
        return None
    if FLAKY in value and not is_second:
        value = "nowhere to be found"
    return {"value": value, "quote": value}


def _stated(prompt: str) -> list[tuple[str, str]]:
    """Return the values that the document states, with the names before them."""
    document = prompt.rpartition("<document>")[2].partition("</document>")[0]
    lines = (line.partition(": ") for line in document.splitlines())
    return [(label, value) for label, separator, value in lines if separator and COVER not in value]
