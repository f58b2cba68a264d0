"""Tests of claims by engines that cannot run every line, and of batches that stay with a kind of engine."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from jobs.batches.growth import adding
from jobs.chunks import claiming, fleet, leasing, ready_queues, unserved
from jobs.chunks.fair_order import AGE_OF_NORMAL
from jobs.chunks.leasing import ClaimedChunk, OtherEngineError
from jobs.engines import fits, served
from jobs.engines.engine import EVERYTHING, OWN_ENGINE, ServingEngine
from jobs.lines.needs import NOTHING, Need
from jobs.storage import Storage
from jobs.tables import Batch, Chunk, Tenant
from tests.all_settings import Settings
from tests.jobs.chunks.builders import LEASE, answers, flush

Run = Callable[..., Batch]
Line = Callable[..., str]

PLAIN = ServingEngine(kind="ollama", version="0.9", meets=NOTHING)
VLLM = ServingEngine(kind="vllm", version="0.32", meets=Need.N | Need.SEED | Need.LOGPROBS)


def line(custom_id: str, **params: Any) -> str:
    body = {"model": "m", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 10} | params
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body})


def plain(num: int) -> list[str]:
    return [line(f"p{number}") for number in range(num)]


def with_logprobs(num: int) -> list[str]:
    return [line(f"l{number}", logprobs=True) for number in range(num)]


def start(session: Session, engine: ServingEngine, *, may_meet: Need | None = None) -> None:
    """Start a worker of an engine; its id is the engine's kind."""
    fleet.register(session, worker_id=engine.kind, model="m", max_chunks=4, max_model_len=512, engine=engine)
    served.note(session, "m", engine, may_meet=may_meet)
    session.commit()


def claim(session: Session, engine: ServingEngine) -> ClaimedChunk | None:
    claimed = claiming.claim_next(session, model="m", worker_id=engine.kind, lease=LEASE, engine=engine)
    session.commit()
    return claimed


def claim_all(session: Session, engine: ServingEngine) -> int:
    num = 0
    while claim(session, engine) is not None:
        num += 1
    return num


def needs_of_chunks(session: Session) -> Sequence[Need]:
    return [Need(chunk.needs) for chunk in session.query(Chunk).order_by(Chunk.id)]


def test_a_chunk_needs_what_its_lines_need_and_a_claim_takes_what_its_engine_can_run(
    session: Session, run: Run
) -> None:
    batch = run([*plain(4), *with_logprobs(4)])
    assert (needs_of_chunks(session), Need(batch.needs)) == ([NOTHING, Need.LOGPROBS], Need.LOGPROBS)
    start(session, PLAIN)
    assert claim_all(session, PLAIN) == 1
    assert claim(session, PLAIN) is None
    batch.engine_choice = "any"
    session.commit()
    last = claim(session, VLLM)
    assert last is not None
    assert last.first_line == 4


def test_a_hinted_chunk_that_its_engine_cannot_run_is_not_claimed(session: Session, run: Run) -> None:
    run(with_logprobs(2))
    (chunk_id,) = session.scalars(text("SELECT id FROM chunk"))
    assert claiming.claim_chunk(session, chunk_id, worker_id="w", lease=LEASE, engine=PLAIN) is None
    assert claiming.claim_chunk(session, chunk_id, worker_id="w", lease=LEASE, engine=VLLM) is not None


def test_queues_with_work_for_others_alone_hide_none_for_an_engine(session: Session, run: Run, tenant: Tenant) -> None:
    """The least served tenants come first, and are as many as a claim reads: they have nothing for it."""
    run(plain(2))
    session.execute(
        text("""
            INSERT INTO tenant (id, name, weight) SELECT 't' || n, 't' || n, 1 FROM generate_series(1, 40) AS n;
            INSERT INTO budget (tenant_id) SELECT id FROM tenant ON CONFLICT DO NOTHING;
            INSERT INTO fair_share (model, priority, tenant_id, virtual_time, waiting_since)
                SELECT 'm', 'normal', id, -n, now() FROM generate_series(1, 40) AS n JOIN tenant ON id = 't' || n;
            INSERT INTO batch (id, tenant_id, input_file_id, endpoint, completion_window, fingerprint, state, model,
                    expires_at, needs)
                SELECT 'b' || n, 't' || n, batch.input_file_id, batch.endpoint, '24h', 'f' || n, 'in_progress', 'm',
                    batch.expires_at, 8
                FROM batch, generate_series(1, 40) AS n;
            INSERT INTO chunk (batch_id, tenant_id, model, priority, expires_at, first_line, num_lines, num_requests,
                    byte_start, byte_end, estimated_tokens, needs)
                SELECT id, tenant_id, 'm', 'normal', expires_at, 0, 1, 1, 0, 9, 10, 8 FROM batch WHERE id LIKE 'b__'
                    OR id LIKE 'b_';
        """)
    )
    start(session, PLAIN)
    claimed = claim(session, PLAIN)
    assert claimed is not None
    assert claimed.tenant_id == tenant.id


def test_lines_that_no_engine_can_run_together_are_in_chunks_of_their_own(session: Session, run: Run) -> None:
    start(session, VLLM)
    start(session, ServingEngine(kind="sglang", meets=Need.STOP))
    run([line("a", logprobs=True), line("b", stop="x"), line("c", stop="x"), line("d")])
    assert needs_of_chunks(session) == [Need.LOGPROBS, Need.STOP]


def test_a_batch_is_refused_by_name_only_if_no_engine_may_run_a_line(session: Session, run: Run) -> None:
    lines = [line("a"), line("b", n=2)]
    assert run(lines).state == "in_progress", "no engine has served the model yet"
    start(session, PLAIN, may_meet=Need.N)
    assert run(lines).state == "in_progress", "it was not seen either way"
    served.note(session, "m", VLLM)
    start(session, ServingEngine(kind="lm-studio", meets=NOTHING))
    assert run(lines).state == "in_progress"
    session.execute(text("DELETE FROM served_engine WHERE kind <> 'lm-studio'"))
    served.note(session, "m", ServingEngine(kind="other", version="2", meets=NOTHING))
    refused = run(lines)
    assert refused.state == "failed"
    assert refused.errors is not None
    (error,) = refused.errors
    assert (error["code"], error["param"], error["line"]) == ("unsupported_parameter", "body.n", 2)
    assert "lm-studio" in error["message"]
    assert "other 2" in error["message"]


@pytest.mark.parametrize(
    ("params", "param"),
    [
        ({"response_format": {"type": "json_object"}}, "body.response_format"),
        ({"seed": 1}, "body.seed"),
        ({"stop": "x"}, "body.stop"),
    ],
)
def test_a_refusal_names_the_parameter_as_the_line_has_it(
    session: Session, run: Run, params: dict[str, Any], param: str
) -> None:
    start(session, PLAIN)
    refused = run([line("a", **params)])
    assert refused.errors is not None
    assert refused.errors[0]["param"] == param


def test_our_engine_runs_every_line_and_its_claims_ask_for_nothing_more(session: Session, run: Run) -> None:
    start(session, OWN_ENGINE)
    run([line("a", n=2, logprobs=True, stop="x", seed=3)])
    assert not ready_queues.look(session, model="m", engine=OWN_ENGINE).has_others
    assert claim(session, OWN_ENGINE) is not None
    assert ready_queues.look(session, model="m", engine=VLLM).has_others


def test_lines_added_to_a_growing_batch_note_their_needs(
    session: Session, run: Run, storage: Storage, settings: Settings
) -> None:
    batch = run(plain(1), is_growing=True)
    new = adding.plan(session, batch, [line("x", stop="y").encode()], settings=settings)
    assert [Need(chunk.needs) for chunk in new.chunks] == [Need.STOP]


# --- batches stay with a kind of engine ---


def test_a_batch_stays_with_the_kind_of_engine_that_gave_its_first_answer(session: Session, run: Run) -> None:
    batch = run(plain(12))
    for engine in (PLAIN, VLLM):
        start(session, engine)
    first = claim(session, PLAIN)
    assert first is not None
    assert claim(session, VLLM) is None, "one of the other kind is about to give the first answer"
    flush(session, first, [0])
    session.refresh(batch)
    assert batch.engine == "ollama"
    leasing.release(session, first)
    session.commit()
    assert claim(session, VLLM) is None
    assert claim_all(session, ServingEngine(kind="ollama", version="1.0", meets=NOTHING)) == 3, "any version of it"


def test_a_batch_whose_first_engine_gave_no_answer_goes_to_another(session: Session, run: Run) -> None:
    batch = run(plain(2))
    for engine in (PLAIN, VLLM):
        start(session, engine)
    first = claim(session, PLAIN)
    assert first is not None
    leasing.release(session, first)
    session.commit()
    assert claim(session, VLLM) is not None
    assert batch.engine is None


def test_a_batch_of_any_engine_is_answered_by_all(session: Session, run: Run) -> None:
    run(plain(12), engine_choice="any")
    for engine in (PLAIN, VLLM, OWN_ENGINE):
        start(session, engine)
        claimed = claim(session, engine)
        assert claimed is not None
        flush(session, claimed, [claimed.first_line])


def test_answers_of_another_kind_than_the_first_are_not_written(session: Session, run: Run) -> None:
    """Both claimed in the same moment: the first flush decides, and nothing of the other is kept or billed."""
    batch = run(plain(8))
    ids = session.scalars(text("SELECT id FROM chunk ORDER BY id")).all()
    one, other = (
        claiming.claim_chunk(session, chunk_id, worker_id=engine.kind, lease=LEASE, engine=engine)
        for chunk_id, engine in zip(ids, (PLAIN, VLLM), strict=True)
    )
    session.commit()
    assert one is not None
    assert other is not None
    flush(session, one, [0])
    with pytest.raises(OtherEngineError, match="answers of ollama"):
        leasing.flush(session, other, answers(other, [4]), flush_no=0, lease=LEASE)
    session.rollback()
    assert session.scalar(text("SELECT count(*) FROM ledger")) == 1
    leasing.extend(session, other, LEASE)
    leasing.release(session, other)
    session.refresh(batch)
    assert batch.num_completed == 1


def test_a_refused_line_binds_its_batch_to_no_engine(session: Session, run: Run) -> None:
    batch = run(plain(2))
    claimed = claim(session, PLAIN)
    assert claimed is not None
    (refusal,) = answers(claimed, [0])
    unbilled = type(refusal)(line_no=0, line=refusal.line, status_code=400)
    leasing.flush(session, claimed, [unbilled], flush_no=0, lease=LEASE)
    session.refresh(batch)
    assert (batch.num_failed, batch.engine) == (1, None)


BF16, FP32 = (ServingEngine(version="1", dtype=dtype) for dtype in ("bfloat16", "float32"))


def test_a_reproducible_batch_is_answered_by_our_engine_in_one_data_type(session: Session, run: Run) -> None:
    batch = run(plain(12), is_reproducible=True)
    start(session, VLLM)
    assert claim(session, VLLM) is None
    first = claim(session, FP32)
    assert first is not None
    flush(session, first, [0])
    session.refresh(batch)
    assert (batch.engine, batch.engine_dtype) == ("tokenmill", "float32")
    assert claim(session, BF16) is None
    assert claim(session, FP32) is not None


def test_a_reproducible_batch_is_refused_where_only_engines_of_others_serve_its_model(
    session: Session, run: Run
) -> None:
    start(session, VLLM)
    refused = run(plain(1), is_reproducible=True)
    assert refused.errors is not None
    assert (refused.errors[0]["code"], refused.errors[0]["param"]) == ("unsupported_parameter", "reproducible")
    start(session, OWN_ENGINE)
    assert run(plain(1), is_reproducible=True).state == "in_progress"


def test_chunks_of_a_batch_for_another_kind_are_not_read_one_by_one(session: Session, run: Run) -> None:
    """20,000 chunks with an earlier deadline stand before the only one that it may claim."""
    for engine in (PLAIN, VLLM):
        start(session, engine)
    bound, own = run(plain(1)), run(plain(1))
    bound.engine = "ollama"
    session.flush()
    session.execute(
        text("""
            INSERT INTO chunk (batch_id, tenant_id, model, priority, expires_at, first_line, num_lines, num_requests,
                byte_start, byte_end, estimated_tokens)
            SELECT batch_id, tenant_id, model, priority, expires_at, 0, 1, 1, 0, 1, 1
            FROM chunk, generate_series(1, 20000) WHERE batch_id = :id
        """),
        {"id": bound.id},
    )
    values = {
        "model": "m",
        "limit": 8,
        "classes": ["normal"],
        "num_present": 0,
        "ages": AGE_OF_NORMAL,
        "min_fetched": 4,
        "again": timedelta(days=-1),
        "urgent_tokens": None,
        **fits.values_of(VLLM),
    }
    plan = session.scalar(text("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + str(ready_queues._READ_FITTING)), values)
    assert isinstance(plan, list)
    assert plan[0]["Plan"]["Shared Hit Blocks"] + plan[0]["Plan"]["Shared Read Blocks"] < 150
    claimed = claim(session, VLLM)
    assert claimed is not None
    assert claimed.batch_id == own.id


# --- what a batch waits for ---


def test_a_batch_whose_last_able_worker_has_died_says_so(session: Session, run: Run) -> None:
    for engine in (PLAIN, VLLM):
        start(session, engine)
    batch = run([*plain(4), *with_logprobs(4)], engine_choice="any")
    assert unserved.waits_for(session, [batch]) == {}
    fleet.stop(session, "vllm")
    session.commit()
    (reason,) = unserved.waits_for(session, [batch]).values()
    assert "logprobs" in reason
    assert "ollama 0.9" in reason
    assert claim_all(session, PLAIN) == 1, "the lines that need nothing go on"


def test_a_batch_of_a_kind_that_no_longer_runs_says_so(session: Session, run: Run) -> None:
    batch = run(plain(8))
    for engine in (PLAIN, VLLM):
        start(session, engine)
    claimed = claim(session, PLAIN)
    assert claimed is not None
    flush(session, claimed, [0])
    fleet.stop(session, "ollama")
    session.commit()
    session.refresh(batch)
    (reason,) = unserved.waits_for(session, [batch]).values()
    assert "ollama" in reason
    assert "vllm 0.32" in reason


def test_all_needs_are_kept_by_a_column(session: Session, run: Run) -> None:
    batch = run(plain(1))
    batch.needs = int(EVERYTHING)
    session.commit()
    session.refresh(batch)
    assert Need(batch.needs) == EVERYTHING
