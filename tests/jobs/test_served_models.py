"""Tests of the models that batches may name, and of their removal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from jobs import served_models
from jobs.chunks import fleet
from jobs.errors import ConflictError, NotFoundError
from jobs.lines.endpoints import LineKind
from jobs.served_models import ModelEmbedding
from jobs.settings import Settings
from jobs.storage import Storage
from jobs.tables import Batch, Chunk
from tests.jobs.batches.control import validate

Make = Callable[..., Batch]


def offered(session: Session) -> list[str]:
    return [model.name for model in served_models.offered_models(session)]


def serve(session: Session, model: str) -> None:
    fleet.register(session, worker_id="w", model=model, max_chunks=1, max_model_len=64)


def test_a_model_is_offered_once_a_worker_has_loaded_it(session: Session) -> None:
    served_models.put_model(session, "broken", "/models/broken")
    served_models.put_model(session, "good", "/models/good")
    assert offered(session) == []
    serve(session, "good")
    assert offered(session) == ["good"]
    fleet.stop(session, "w")
    served_models.put_model(session, "good", "/models/better")  # while no worker runs, batches wait for it
    assert offered(session) == ["good"]
    assert served_models.find_offered(session, "good").path == "/models/better"
    with pytest.raises(NotFoundError, match="'broken' does not exist; known are: good"):
        served_models.find_offered(session, "broken")


def test_a_model_that_an_operator_has_checked_is_offered_at_once(session: Session) -> None:
    served_models.add_model(session, "here", "/models/here")
    served_models.add_model(session, "elsewhere", "/models/elsewhere", is_checked=False)
    assert offered(session) == ["here"]


def test_a_batch_for_a_model_that_never_loaded_fails_and_is_told_so(
    session: Session, submit: Make, storage: Storage, settings: Settings, request_line: Callable[..., str]
) -> None:
    served_models.put_model(session, "broken", "/models/broken")
    batch = submit([request_line("a", model="broken")])
    assert validate(session, storage, batch.id, settings=settings) == "failed"
    session.refresh(batch)
    assert [error["code"] for error in batch.errors or []] == ["model_not_found"]


def test_a_model_is_removed_and_can_be_added_anew(session: Session) -> None:
    served_models.add_model(session, "m", "/models/m", input_price_picos=5)
    served_models.remove_model(session, "m")
    assert offered(session) == []
    assert served_models.add_model(session, "m", "/models/m").input_price_picos == 0
    with pytest.raises(NotFoundError, match="'none' does not exist; known are: m"):
        served_models.remove_model(session, "none")


def test_a_model_that_a_worker_serves_is_not_removed(session: Session) -> None:
    served_models.add_model(session, "m", "/models/m")
    serve(session, "m")
    with pytest.raises(ConflictError, match="'m' is served by w; stop what serves it"):
        served_models.remove_model(session, "m")
    fleet.stop(session, "w")
    served_models.remove_model(session, "m")


def test_a_model_that_open_batches_name_is_not_removed(session: Session, run: Make, make_batch: Make) -> None:
    batches = [run(1) for _ in range(5)]
    with pytest.raises(ConflictError, match=r"batch_.*, batch_.*, batch_.* and 2 more\. Cancel them or let them end"):
        served_models.remove_model(session, "m")
    for batch in batches:
        session.execute(text("UPDATE batch SET state = 'cancelled' WHERE id = :id"), {"id": batch.id})
    make_batch(state="completed", model="m")
    served_models.remove_model(session, "m")


def test_a_batch_whose_model_is_removed_while_it_is_validated_fails_with_nothing_left(
    session: Session,
    maker: sessionmaker[Session],
    submit: Make,
    storage: Storage,
    settings: Settings,
    request_line: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batch = submit([request_line(f"a{number}") for number in range(9)], reserved_tokens=10)
    read = storage.iter_range

    def iter_range(*arguments: Any) -> Iterator[bytes]:
        yield from read(*arguments)
        with maker.begin() as other:
            served_models.remove_model(other, "m")

    monkeypatch.setattr(storage, "iter_range", iter_range)
    assert validate(session, storage, batch.id, settings=settings) == "failed"
    session.refresh(batch)
    assert [(error["code"], error["message"]) for error in batch.errors or []] == [
        ("model_not_found", "the model 'm' was removed just now, or now answers other lines")
    ]
    assert (batch.reserved_tokens, session.query(Chunk).count()) == (0, 0)


def test_a_model_answers_other_lines_once_nobody_needs_it_as_it_was(session: Session, run: Make) -> None:
    run(1)
    served_models.note_kind(session, "m", LineKind.GENERATE)
    with pytest.raises(ConflictError, match=r"name the model 'm': batch_.* then have it serve /v1/embeddings"):
        served_models.note_kind(session, "m", LineKind.POOL)
    session.execute(text("UPDATE batch SET state = 'cancelled'"))
    serve(session, "m")
    with pytest.raises(ConflictError, match="'m' is served by w; stop what serves it"):
        served_models.note_kind(session, "m", LineKind.POOL)
    fleet.stop(session, "w")
    served_models.note_kind(session, "m", LineKind.POOL)
    assert served_models.names_for(session, LineKind.POOL) == {"m"}
    assert "m" not in served_models.names_for(session, LineKind.GENERATE)
    with pytest.raises(NotFoundError, match="'none' does not exist"):
        served_models.note_kind(session, "none", LineKind.POOL)


def test_a_model_changes_its_dtype_only_while_no_worker_computes_in_another(session: Session) -> None:
    made = ModelEmbedding(model_sha256="h", tokenizer_sha256="t", pooling="mean", dimensions=2, max_tokens=8)
    served_models.put_model(session, "m", "folder")
    served_models.note_embedding(session, "m", made)
    serve(session, "m")
    served_models.note_embedding(session, "m", replace(made, model_sha256="other"))
    with pytest.raises(ConflictError, match=r"served in float32 by w.* --dtype float32.* --dtype bfloat16"):
        served_models.note_embedding(session, "m", replace(made, dtype="bfloat16"))
    fleet.stop(session, "w")
    served_models.note_embedding(session, "m", replace(made, dtype="bfloat16"))
    session.expire_all()
    assert served_models.embedding_of(served_models.find_model(session, "m")).dtype == "bfloat16"


def test_a_batch_whose_model_answers_other_lines_by_its_end_of_validation_fails(
    session: Session,
    maker: sessionmaker[Session],
    submit: Make,
    storage: Storage,
    settings: Settings,
    request_line: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batch = submit([request_line("a")])
    read = storage.iter_range

    def iter_range(*arguments: Any) -> Iterator[bytes]:
        yield from read(*arguments)
        with maker.begin() as other:
            served_models.note_kind(other, "m", LineKind.POOL)

    monkeypatch.setattr(storage, "iter_range", iter_range)
    assert validate(session, storage, batch.id, settings=settings) == "failed"
    session.refresh(batch)
    assert [error["code"] for error in batch.errors or []] == ["model_not_found"]
