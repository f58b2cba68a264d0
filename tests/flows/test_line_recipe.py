"""Tests of a recipe of chat lines with the example that translates, judges, and translates the bad ones again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
import pytest
from sqlalchemy import select, text
from sqlalchemy.orm import Session, sessionmaker

from examples.flows.translate import Translate, Translation
from flows import nodes, rows
from flows.advancing import FlowAdvancer
from flows.due import find_due
from flows.tables import FlowNode
from jobs import files, served_models
from jobs.audit.audit import audit
from jobs.batches import lifecycle, made_inputs
from jobs.settings import Settings
from jobs.storage import Storage
from jobs.tables import Batch, Tenant
from tests.features.documents.answering import Answering

TEXTS = {"a": "good day", "b": "mill", "c": "river"}


class Translator(Answering):
    """Translates b badly the first time, and knows that."""

    def _answer(self, batch: Batch, body: Mapping[str, Any]) -> dict[str, Any]:
        prompt = body["messages"][0]["content"]
        self.asked.append(body)
        if prompt.startswith("Is this"):
            answer = "No." if "'mill'" in prompt else "Yes."
        else:
            tries = sum(each["messages"][0]["content"] == prompt for each in self.asked)
            answer = f"<{prompt.rpartition(' ')[2]} {tries}>"
        choice = {"index": 0, "message": {"role": "assistant", "content": answer}, "finish_reason": "stop"}
        return {"object": "chat.completion", "choices": [choice], "usage": {"total_tokens": 10}}


@pytest.fixture
def translator(maker: sessionmaker[Session], storage: Storage, settings: Any) -> Translator:
    return Translator(maker, storage, settings)


@pytest.fixture
def recipe(storage: Storage, settings: Settings) -> Translate:
    return Translate(storage, settings)


@pytest.fixture
def flow(session: Session, recipe: Translate, tenant: Tenant) -> Translation:
    served_models.add_model(session, "m", "/models/m")
    made = recipe.create(session, tenant, {"model": "m", "language": "German", "texts": TEXTS}, key_id=None)
    session.commit()
    return made


@pytest.fixture
def advancer(recipe: Translate, maker: sessionmaker[Session], settings: Settings) -> FlowAdvancer[Any, Any]:
    return FlowAdvancer(recipe, maker, settings)


def records(session: Session, storage: Storage, flow: Translation) -> list[dict[str, Any]]:
    session.refresh(flow)
    file = files.find_kept(session, flow.tenant_id, str(flow.asked["output_file_id"]))
    assert file is not None
    return [orjson.loads(line) for line in b"".join(storage.iter_chunks(file.object_key)).splitlines()]


def begun(session: Session, flow: Translation) -> list[tuple[str, int]]:
    query = select(FlowNode).where(FlowNode.flow_id == flow.id).order_by(FlowNode.number)
    return [(node.name, node.num_lines) for node in session.scalars(query)]


EXPECTED = [
    {"id": "a", "translation": "<day 1>"},
    {"id": "b", "translation": "<mill 2>"},
    {"id": "c", "translation": "<river 1>"},
]


def test_only_bad_translations_are_made_again(
    session: Session, storage: Storage, flow: Translation, advancer: FlowAdvancer[Any, Any], translator: Translator
) -> None:
    assert [due.id for due in find_due(session, ["translation"])] == [flow.id]
    assert find_due(session, ["run", "index"]) == []
    translator.take_turns(session, advancer, flow)
    assert flow.state == "completed"
    assert begun(session, flow) == [("translate", 3), ("judge", 3), ("again", 1)]
    assert records(session, storage, flow) == EXPECTED
    assert len(translator.asked) == 7
    session.commit()
    assert audit(session) == []


EFFECTS = [
    (made_inputs, "write_input"),
    (nodes, "begin"),
    (nodes, "note_ended"),
    (files, "create_file"),
    (rows, "free"),
]


@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(("module", "name"), EFFECTS, ids=[name for _module, name in EFFECTS])
def test_killed_at_any_effect_another_worker_goes_on(
    session: Session,
    storage: Storage,
    flow: Translation,
    advancer: FlowAdvancer[Any, Any],
    translator: Translator,
    monkeypatch: pytest.MonkeyPatch,
    *,
    module: Any,
    name: str,
    is_after: bool,
) -> None:
    effect, calls = getattr(module, name), []

    def deadly(*given: Any, **named: Any) -> Any:
        calls.append(name)
        if len(calls) % 2 == 0:
            return effect(*given, **named)
        if is_after:
            effect(*given, **named)
        raise KeyboardInterrupt

    monkeypatch.setattr(module, name, deadly)
    for _ in range(20):
        try:
            translator.take_turns(session, advancer, flow)
            break
        except KeyboardInterrupt:
            session.rollback()
            session.execute(text("UPDATE flow SET claimed_until = now() - interval '1 second'"))
            session.commit()
    assert calls
    assert records(session, storage, flow) == EXPECTED
    assert session.scalar(text("SELECT sum(num_completed) FROM batch")) == 7
    session.commit()
    assert audit(session) == []


def test_a_cancelled_flow_cancels_its_batch_and_ends(
    session: Session, flow: Translation, recipe: Translate, advancer: FlowAdvancer[Any, Any], translator: Translator
) -> None:
    advancer.advance(flow.id)
    locked, is_open = recipe.flows.lock_to_cancel(session, flow.tenant_id, flow.id)
    assert is_open
    recipe.cancel(session, locked, reason="not needed")
    session.commit()
    translator.take_turns(session, advancer, flow)
    assert (flow.state, flow.reason) == ("cancelled", "not needed")
    assert [batch.state for batch in session.scalars(select(Batch))] == ["cancelled"]
    assert recipe.flows.lock_to_cancel(session, flow.tenant_id, flow.id)[1] is False


def test_a_batch_that_does_not_complete_fails_the_flow(
    session: Session, flow: Translation, advancer: FlowAdvancer[Any, Any], translator: Translator
) -> None:
    advancer.advance(flow.id)
    (batch,) = session.scalars(select(Batch)).all()
    lifecycle.cancel_batch(session, flow.tenant_id, batch.id)
    session.commit()
    translator.take_turns(session, advancer, flow)
    assert flow.state == "failed"
    assert batch.id in (flow.reason or "")


def test_answers_that_their_owner_deleted_fail_the_flow(
    session: Session, flow: Translation, advancer: FlowAdvancer[Any, Any], translator: Translator
) -> None:
    advancer.advance(flow.id)
    translator.work_off()
    (batch,) = session.scalars(select(Batch)).all()
    session.execute(text("UPDATE file SET deleted_at = now() WHERE id = :id"), {"id": batch.output_file_id})
    session.commit()
    translator.take_turns(session, advancer, flow)
    assert flow.state == "failed"
    assert str(batch.output_file_id) in (flow.reason or "")
