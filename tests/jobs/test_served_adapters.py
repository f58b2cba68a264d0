"""Tests of adapters: models of their own name and price whose lines run at the workers of their base."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from jobs import served_adapters, served_models
from jobs.batches import exact_counts
from jobs.chunks import claiming, fleet, leasing, unserved
from jobs.chunks.leasing import ClaimedChunk
from jobs.engines import able, served
from jobs.engines.engine import OWN_ENGINE, ServingEngine
from jobs.errors import ConflictError, InputError, NotFoundError
from jobs.forecasts import snapshot
from jobs.lines.endpoints import LineKind
from jobs.lines.needs import NOTHING, Need
from jobs.states import AskedPriority
from jobs.tables import Batch, Model, Tenant
from tests.jobs.chunks.builders import LEASE, answers

Run = Callable[..., Batch]
VLLM = ServingEngine(kind="vllm", version="0.32", meets=Need.SEED, adapters=frozenset({"sql-lora", "law-lora"}))


def line(custom_id: str, model: str, **params: Any) -> str:
    body = {"model": model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 10} | params
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body})


def start(session: Session, engine: ServingEngine = VLLM, *, out_reason: str | None = None) -> None:
    fleet.register(
        session,
        worker_id=engine.kind,
        model="m",
        max_chunks=4,
        max_model_len=512,
        engine=engine,
        out_reason=out_reason,
    )
    served.note(session, "m", engine)
    session.commit()


def add(session: Session, name: str, adapter: str, *, base: str = "m", **prices: Any) -> Model:
    model = served_adapters.add_adapter(session, name, base=base, adapter=adapter, **prices)
    session.commit()
    return model


def claim(session: Session, engine: ServingEngine = VLLM) -> ClaimedChunk | None:
    claimed = claiming.claim_next(session, model="m", worker_id=engine.kind, lease=LEASE, engine=engine)
    session.commit()
    return claimed


@pytest.fixture
def adapters(session: Session, submit: Callable[..., Batch]) -> None:
    """Two adapters of `m` at a server that lists them; `law` has prices of its own."""
    start(session)
    add(session, "sql", "sql-lora")
    add(session, "law", "law-lora", input_price_picos=7_000_000)


@pytest.mark.usefixtures("adapters")
def test_one_worker_claims_lines_of_the_base_and_of_all_its_adapters(session: Session, run: Run) -> None:
    for model in ("m", "sql", "law"):
        run([line(f"{model}{number}", model) for number in range(2)])
    claims = [claim(session) for _ in range(3)]
    seen = {(one.model, one.adapter, one.server_model, one.named_model) for one in claims if one is not None}
    assert seen == {("m", None, None, "m"), ("m", "sql", "sql-lora", "sql"), ("m", "law", "law-lora", "law")}
    assert claim(session) is None


@pytest.mark.usefixtures("adapters")
def test_lines_of_an_adapter_are_billed_under_its_name_at_its_price_or_its_bases(session: Session, run: Run) -> None:
    served_models.set_prices(session, "m", output_price_picos=3_000_000)
    for model in ("sql", "law"):
        run([line("a", model)])
    for _ in range(2):
        claimed = claim(session)
        assert claimed is not None
        leasing.flush(session, claimed, answers(claimed, [0]), flush_no=0, lease=LEASE)
    rows = session.execute(text("SELECT model, cost_picos::bigint FROM ledger ORDER BY model")).all()
    assert rows == [("law", 5 * 7_000_000), ("sql", 5 * 1_000_000 + 3 * 3_000_000)]


@pytest.mark.usefixtures("adapters")
def test_our_engine_and_servers_that_do_not_list_it_leave_an_adapters_lines(session: Session, run: Run) -> None:
    start(session, OWN_ENGINE)
    batch = run([line("a", "sql")])
    assert claim(session, OWN_ENGINE) is None
    (chunk_id,) = session.scalars(text("SELECT id FROM chunk"))
    assert claiming.claim_chunk(session, chunk_id, worker_id="o", lease=LEASE, engine=OWN_ENGINE) is None
    assert claim(session, ServingEngine(kind="vllm", meets=NOTHING)) is None
    fleet.stop(session, "vllm")
    (wait,) = unserved.waits_for(session, [batch]).values()
    assert "sql-lora" in wait
    assert claim(session, VLLM) is not None


@pytest.mark.usefixtures("adapters")
def test_an_adapter_has_the_context_and_the_abilities_of_its_base(session: Session, run: Run) -> None:
    assert fleet.contexts(session)["sql"] == 512
    assert run([line("a", "sql", seed=1)]).state == "in_progress"
    refused = run([line("a", "sql", logprobs=True)])
    assert refused.errors is not None
    assert refused.errors[0]["param"] == "body.logprobs"
    start(session, OWN_ENGINE)  # which offers everything, but no adapter
    assert run([line("a", "sql", logprobs=True)]).state == "failed"
    assert run([line("a", "sql")], is_reproducible=True).state == "failed"
    assert [known.kind for known in served.of_model(session, "sql")] == ["vllm"]


@pytest.mark.usefixtures("adapters")
def test_a_batch_of_an_adapter_is_in_the_queue_of_its_base(session: Session, run: Run) -> None:
    batch = run([line("a", "sql")])
    assert (batch.model, batch.adapter, batch.named_model) == ("m", "sql", "sql")
    assert run([line("a", "sql"), line("b", "law")]).state == "failed"
    snapshot.take(session)
    assert session.scalars(text("SELECT model FROM serving_rate")).all() == ["m"]
    assert [load.batch_id for load in snapshot.queue_of(session, "m").loads] == [batch.id]
    assert session.scalars(text("SELECT DISTINCT model FROM fair_share")).all() == ["m"]


@pytest.mark.usefixtures("adapters")
def test_workers_of_the_base_count_inputs_of_its_adapters(session: Session, run: Run, tenant: Tenant) -> None:
    batch = run([line("a", "sql")])
    new = exact_counts.NewCount(
        file_id=batch.input_file_id,
        endpoint=batch.endpoint,
        model="sql",
        priority=AskedPriority.NORMAL,
        completion_window="24h",
    )
    exact_counts.ask(session, tenant.id, new)
    assert exact_counts.claim(session, model="other", lease=LEASE) is None
    claimed = exact_counts.claim(session, model="m", lease=LEASE)
    assert claimed is not None
    assert claimed.model == "sql"


@pytest.mark.usefixtures("adapters")
def test_a_base_stays_as_long_as_it_has_adapters_and_an_adapter_as_long_as_batches_name_it(
    session: Session, run: Run
) -> None:
    batch = run([line("a", "sql")])
    with pytest.raises(ConflictError, match=batch.id):
        served_models.remove_model(session, "sql")
    fleet.stop(session, "vllm")
    with pytest.raises(ConflictError, match="law, sql"):
        served_models.remove_model(session, "m")
    served_models.remove_model(session, "law")
    assert session.get(Model, "law") is None


@pytest.mark.usefixtures("adapters")
def test_prices_of_a_base_are_those_of_adapters_without_their_own(session: Session) -> None:
    served_models.set_prices(session, "m", input_price_picos=9)
    prices = session.execute(text("SELECT name, input_price_picos FROM model WHERE base = 'm' ORDER BY name")).all()
    assert prices == [("law", 7_000_000), ("sql", 9)]
    served_models.set_prices(session, "sql", input_price_picos=4)
    served_models.set_prices(session, "m", input_price_picos=11)
    assert session.scalar(text("SELECT input_price_picos FROM model WHERE name = 'sql'")) == 4


def test_an_adapter_is_offered_once_a_server_lists_it(session: Session, submit: Callable[..., Batch]) -> None:
    assert add(session, "sql", "sql-lora").checked_at is None, "no server runs"
    served_adapters.note_listed(session, "m", {"law-lora"})
    assert "sql" not in served_models.names_for(session, LineKind.GENERATE)
    served_adapters.note_listed(session, "m", VLLM.adapters)
    session.commit()
    assert "sql" in served_models.names_for(session, LineKind.GENERATE)


@pytest.mark.parametrize("state", ["waiting", "out", "drained"])
def test_a_worker_that_claims_nothing_tells_nothing_of_what_its_server_lists(
    session: Session, submit: Callable[..., Batch], state: str
) -> None:
    reason = "the server cannot be reached"
    engine = ServingEngine(kind="unknown", meets=NOTHING) if state == "waiting" else VLLM
    start(session, engine, out_reason=reason if state == "waiting" else None)
    if state == "out":
        fleet.heartbeat(session, engine.kind, out_reason=reason)
    if state == "drained":
        fleet.set_draining(session, fleet.find_worker(session, engine.kind), is_draining=True)
    assert add(session, "new", "other-lora").checked_at is None
    assert add(session, "sql", "sql-lora").checked_at is None


@pytest.mark.usefixtures("adapters")
@pytest.mark.parametrize(
    ("name", "base", "adapter", "error", "code"),
    [
        ("new", "nowhere", "sql-lora", NotFoundError, "model_not_found"),
        ("new", "sql", "law-lora", InputError, "base_is_adapter"),
        ("sql", "m", "sql-lora", ConflictError, "conflict"),
        ("new", "m", "other-lora", InputError, "adapter_not_listed"),
        ("new", "m", " ", InputError, "no_name"),
    ],
)
def test_a_wrong_adapter_is_refused_by_code(
    session: Session, name: str, base: str, adapter: str, error: type[InputError], code: str
) -> None:
    with pytest.raises(error) as raised:
        served_adapters.add_adapter(session, name, base=base, adapter=adapter)
    assert raised.value.code == code


def test_a_name_that_is_a_folder_here_must_say_which_is_meant(
    session: Session, submit: Callable[..., Batch], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sql").mkdir()
    with pytest.raises(InputError) as raised:
        add(session, "new", "sql")
    assert raised.value.code == "adapter_is_path"
    assert add(session, "new", "./sql").adapter == str(tmp_path / "sql")


def test_a_folder_is_for_our_engine_alone_and_offered_once_a_worker_can_read_it(
    session: Session, submit: Callable[..., Batch], run: Run
) -> None:
    start(session)
    start(session, OWN_ENGINE)
    assert add(session, "slang", "/adapters/slang").checked_at is None
    assert [known.kind for known in served.of_model(session, "slang")] == ["tokenmill"]
    assert {known.kind for known in served.of_model(session, "m")} == {"tokenmill", "vllm"}
    assert served_adapters.folders_of(session, "m") == ["/adapters/slang"]
    served_adapters.note_listed(session, "m", {"/adapters/slang"})
    session.commit()
    run([line("1", "slang")])
    assert claim(session) is None
    assert claim(session, OWN_ENGINE) is None
    claimed = claim(session, replace(OWN_ENGINE, adapters=frozenset({"/adapters/slang"})))
    assert claimed is not None
    assert (claimed.named_model, claimed.server_model) == ("slang", "/adapters/slang")


def test_no_folder_is_shown_to_a_tenant_whose_batch_waits_for_it(
    session: Session, submit: Callable[..., Batch], run: Run
) -> None:
    start(session, OWN_ENGINE)
    add(session, "slang", "/adapters/slang", is_readable=lambda base, folder: True)
    batch = run([line("1", "slang")])
    wait = able.lacking(session, batch, [OWN_ENGINE])
    assert wait is not None
    assert "/adapters" not in wait
    assert "'slang'" in wait


def test_a_model_that_generates_nothing_has_no_adapters_of_our_engine(
    session: Session, submit: Callable[..., Batch]
) -> None:
    served_models.note_kind(session, "m", LineKind.POOL)
    with pytest.raises(InputError) as raised:
        add(session, "slang", "/adapters/slang")
    assert raised.value.code == "base_generates_nothing"


@pytest.mark.usefixtures("adapters")
def test_no_worker_serves_an_adapter_as_a_model_of_its_own(session: Session) -> None:
    with pytest.raises(ConflictError, match="'m'"):
        served_models.note_kind(session, "sql", LineKind.GENERATE)
