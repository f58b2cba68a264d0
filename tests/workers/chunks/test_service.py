"""Tests of a worker's slots on a real database: its own claims, those by hints, and work above K."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session, sessionmaker

from engine.process.messages import EngineInfo
from jobs import metrics
from jobs.accounts import tenants
from jobs.chunks import claiming, fleet
from jobs.chunks.leasing import ClaimedChunk
from jobs.database import connect, sessions
from jobs.overview import fleet as overview_fleet
from jobs.settings import Settings
from jobs.states import AskedPriority, Priority
from jobs.storage import Storage
from jobs.tables import Tenant
from jobs.telemetry import declared
from jobs.telemetry.declared import WORKER
from jobs.telemetry.meters import Meters
from tests.workers.chunks.builders import DEMO_MODEL
from tests.workers.chunks.services import NEVER, OPEN, OWNERS, STATES, GatedHost, Watch
from workers.answers import AnswerMaker
from workers.chunks.adapter_folders import AdapterFolders
from workers.chunks.engine_answerer import EngineAnswerer
from workers.chunks.engine_parts import EngineParts
from workers.chunks.service import ChunkService
from workers.chunks.services import Services
from workers.prompts import PromptMaker


@pytest.fixture
def host() -> GatedHost:
    return GatedHost()


MakeService = Callable[..., ChunkService]
Submit = Callable[..., str]


@pytest.fixture
def make_service(
    maker: sessionmaker[Session], storage: Storage, settings: Settings, tokenizer: Any, host: GatedHost
) -> Iterator[MakeService]:
    """Make a worker with `slots`; it is drained at the end, once the host answers."""
    made: list[ChunkService] = []
    any_host: Any = host

    def make(
        num_slots: int, *, claim_alone_seconds: float = NEVER, flushes: sessionmaker[Session] | None = None
    ) -> ChunkService:
        chosen = settings.model_copy(
            update={"worker_chunks": num_slots, "claim_alone_seconds": claim_alone_seconds, "drain_seconds": 60.0}
        )

        services = Services(
            sessions=maker if flushes is None else flushes,
            hold_sessions=maker,
            storage=storage,
            settings=chosen,
            meters=Meters(WORKER),
        )

        def make_parts(info: EngineInfo) -> EngineParts:
            return EngineParts(
                services=services,
                host=any_host,
                prompts=PromptMaker(tokenizer, max_model_len=info.max_model_len, vocab_size=info.vocab_size),
                answers=AnswerMaker(tokenizer, model="demo"),
                tokenizer=tokenizer,
                model_fingerprint="demo",
                adapters=AdapterFolders(maker, model="demo", folder=DEMO_MODEL),
            )

        answerer = EngineAnswerer(any_host, make_parts, model="demo")
        service = ChunkService(worker_id="w", model="demo", answerer=answerer, services=services)
        made.append(service)
        return service

    yield make
    host.release()
    for service in made:
        service.drain()
        service.close()


@pytest.fixture
def other_tenant(maker: sessionmaker[Session]) -> Tenant:
    with maker.begin() as session:
        return tenants.create_tenant(session, "other", limit_tokens=1_000_000, best_priority=AskedPriority.URGENT)


@pytest.fixture
def watch(maker: sessionmaker[Session]) -> Watch:
    return Watch(maker)


@pytest.fixture
def lines(line: Callable[..., dict[str, Any]], settings: Settings) -> Callable[[int], list[dict[str, Any]]]:
    """Make the lines of this many chunks."""
    return lambda num_chunks: [line(number) for number in range(num_chunks * settings.chunk_lines)]


@pytest.fixture
def claimed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The classes of the chunks that workers claim by themselves, in order."""
    classes: list[str] = []
    claim_next = claiming.claim_next

    def noted(*args: Any, **options: Any) -> ClaimedChunk | None:
        claim = claim_next(*args, **options)
        if claim is not None:
            classes.append(claim.priority)
        return claim

    monkeypatch.setattr(claiming, "claim_next", noted)
    return classes


def test_the_end_of_a_chunk_is_followed_by_the_next_claim_without_a_hint(
    make_service: MakeService, submit_valid: Submit, lines: Callable[[int], list[Any]], watch: Watch
) -> None:
    service = make_service(1)
    service.start()
    submit_valid(lines(6))
    ((waiting,),) = watch.rows("SELECT min(id) FROM chunk")
    service.run_hinted(waiting)
    watch.until(STATES, [("done", 6)])


def test_a_hint_whose_chunk_is_gone_gets_the_next_one(
    make_service: MakeService, submit_valid: Submit, lines: Callable[[int], list[Any]], watch: Watch
) -> None:
    service = make_service(2)
    service.start()
    submit_valid(lines(2))
    service.run_hinted(0)
    watch.until(STATES, [("done", 2)])


@pytest.mark.parametrize(("age", "followed"), [("1 second", True), ("1 minute", False)])
def test_a_hint_that_was_under_way_for_long_is_but_a_wake(
    make_service: MakeService,
    submit_valid: Submit,
    lines: Callable[[int], list[Any]],
    watch: Watch,
    host: GatedHost,
    maker: sessionmaker[Session],
    age: str,
    followed: bool,
) -> None:
    host.hold()
    service = make_service(1)
    service.start()
    submit_valid(lines(2))
    ((next_in_turn, hinted),) = watch.rows("SELECT min(id), max(id) FROM chunk")
    with maker.begin() as session:
        session.execute(text(f"UPDATE chunk SET hinted_at = clock_timestamp() - interval '{age}' WHERE id = {hinted}"))
    service.run_hinted(hinted)
    claimed = hinted if followed else next_in_turn
    watch.until("SELECT id FROM chunk WHERE state = 'leased'", [(claimed,)])


def test_a_hint_waits_for_a_slot_and_for_no_longer_than_the_drain(
    make_service: MakeService,
    submit_valid: Submit,
    lines: Callable[[int], list[Any]],
    watch: Watch,
    host: GatedHost,
) -> None:
    host.hold()
    submit_valid(lines(2))
    service = make_service(1)
    service.start()
    watch.until(STATES, [("leased", 1), ("ready", 1)])
    ((waiting,),) = watch.rows("SELECT id FROM chunk WHERE state = 'ready'")
    hinted = threading.Thread(target=service.run_hinted, args=(waiting,), daemon=True)
    hinted.start()
    hinted.join(1)
    assert hinted.is_alive(), "it was swallowed by a full worker, and others never saw it"
    service.begin_drain()
    hinted.join(20)
    assert not hinted.is_alive()
    host.release()
    service.drain()
    assert watch.rows(STATES) == [("done", 1), ("ready", 1)], "a worker that drains claims nothing more"


def test_tenants_get_their_shares_from_a_worker_that_claims_by_itself(
    make_service: MakeService,
    submit_valid: Submit,
    lines: Callable[[int], list[Any]],
    watch: Watch,
    maker: sessionmaker[Session],
    tenant: Tenant,
    other_tenant: Tenant,
) -> None:
    with maker.begin() as session:
        session.execute(text("UPDATE tenant SET weight = 3 WHERE id = :id"), {"id": other_tenant.id})
    submit_valid(lines(12))
    submit_valid(lines(12), tenant=other_tenant)
    make_service(1).start()
    watch.until(STATES, [("done", 24)])
    first = [name for (name,) in watch.rows(OWNERS)][:16]
    assert first.count("other") in (11, 12, 13), "three of four chunks, as long as both wait"


def test_waiting_lifts_a_chunk_for_a_worker_that_claims_by_itself(
    make_service: MakeService,
    submit_valid: Submit,
    lines: Callable[[int], list[Any]],
    watch: Watch,
    maker: sessionmaker[Session],
    other_tenant: Tenant,
    claimed: list[str],
) -> None:
    submit_valid(lines(2), priority=Priority.BULK)
    with maker.begin() as session:
        session.execute(text("UPDATE fair_share SET waiting_since = waiting_since - interval '21 minutes'"))
    submit_valid(lines(3), priority=Priority.URGENT, tenant=other_tenant)
    make_service(1).start()
    watch.until(STATES, [("done", 5)])
    assert claimed == ["bulk", "urgent", "urgent", "urgent", "bulk"]


def test_a_tenant_with_the_turn_waits_for_no_slot_that_others_fill(
    make_service: MakeService,
    submit_valid: Submit,
    lines: Callable[[int], list[Any]],
    watch: Watch,
    host: GatedHost,
    other_tenant: Tenant,
) -> None:
    host.hold()
    submit_valid(lines(6))
    make_service(3).start()
    watch.until(OPEN, [("normal", 3)])
    submit_valid(lines(3), tenant=other_tenant)
    watch.until(OPEN, [("normal", 4)])
    held = "SELECT name FROM chunk JOIN tenant ON tenant.id = tenant_id WHERE chunk.state = 'leased' AND name = 'other'"
    assert len(watch.rows(held)) == 1
    host.release()
    watch.until(STATES, [("done", 9)])


def test_better_work_starts_above_the_slots_of_a_full_worker_and_not_without_end(
    make_service: MakeService,
    submit_valid: Submit,
    lines: Callable[[int], list[Any]],
    watch: Watch,
    host: GatedHost,
    other_tenant: Tenant,
    claimed: list[str],
) -> None:
    host.hold()
    submit_valid(lines(5), priority=Priority.BULK)
    make_service(3).start()
    watch.until(OPEN, [("bulk", 3)])
    submit_valid(lines(2), tenant=other_tenant)
    watch.until(OPEN, [("bulk", 3), ("normal", 1)])
    submit_valid(lines(3), priority=Priority.URGENT, tenant=other_tenant)
    watch.until(OPEN, [("bulk", 3), ("normal", 1), ("urgent", 1)])
    host.release()
    watch.until(STATES, [("done", 10)])
    assert claimed[-2:] == ["bulk", "bulk"], "what ended made room for better work first"


def test_a_database_that_is_away_costs_a_worker_only_the_time_until_it_is_back(
    make_service: MakeService,
    submit_valid: Submit,
    lines: Callable[[int], list[Any]],
    watch: Watch,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from jobs.errors import ServiceError

    real, tries = claiming.claim_next, itertools.count()

    def away_at_first(*args: Any, **kwargs: Any) -> Any:
        attempt = next(tries)
        if attempt == 0:
            raise ServiceError("away")
        if attempt == 1:
            raise ZeroDivisionError
        return real(*args, **kwargs)

    monkeypatch.setattr(claiming, "claim_next", away_at_first)
    submit_valid(lines(2))
    make_service(1, claim_alone_seconds=0.02).start()
    watch.until(STATES, [("done", 2)])


@pytest.fixture
def flushes(database_url: str) -> Iterator[Engine]:
    """The connections of chunks: a single one. Outlives the services that are drained at the end."""
    engine = connect(database_url, connections=1)
    yield engine
    engine.dispose()


def test_the_heart_beats_while_chunks_have_every_connection_of_the_flushes(
    flushes: Engine, make_service: MakeService, watch: Watch, maker: sessionmaker[Session]
) -> None:
    make_service(1, flushes=sessions(flushes)).start()
    with flushes.connect():
        with maker.begin() as session:
            session.execute(text("UPDATE worker SET heartbeat_at = now() - interval '1 hour'"))
        watch.until("SELECT heartbeat_at > now() - interval '30 minutes' FROM worker", [(True,)])


def test_a_worker_that_was_forgotten_announces_itself_again(
    make_service: MakeService, watch: Watch, maker: sessionmaker[Session]
) -> None:
    make_service(1).start()
    with maker.begin() as session:
        session.execute(text("DELETE FROM worker"))
    watch.until("SELECT model, max_chunks, max_model_len > 0 FROM worker", [("demo", 1, True)])


def test_a_drained_worker_claims_nothing_until_it_is_resumed(
    make_service: MakeService, submit_valid: Submit, lines: Callable[[int], list[Any]], watch: Watch, maker: Any
) -> None:
    def set_draining(moment: str) -> None:
        with maker.begin() as session:
            session.execute(text(f"UPDATE worker SET draining_at = {moment}"))
        for _ in range(2):  # heartbeats: the first may have begun before
            with maker.begin() as session:
                session.execute(text("UPDATE worker SET heartbeat_at = 'epoch'"))
            watch.until("SELECT heartbeat_at > 'epoch' FROM worker", [(True,)])

    make_service(2, claim_alone_seconds=0.01).start()
    set_draining("now()")
    submit_valid(lines(2))
    set_draining("now()")
    assert watch.rows(STATES) == [("ready", 2)]
    set_draining("NULL")
    watch.until(STATES, [("done", 2)])


def test_a_worker_that_is_out_says_why_gives_back_what_it_has_and_works_again_when_it_is_resumed(
    make_service: MakeService,
    submit_valid: Submit,
    lines: Callable[[int], list[Any]],
    watch: Watch,
    maker: Any,
    host: GatedHost,
) -> None:
    service = make_service(2, claim_alone_seconds=0.01)
    host.hold()
    service.start()
    submit_valid(lines(2))
    watch.until(STATES, [("leased", 2)])
    service._drain.take_out("no numbers")
    watch.until("SELECT engine_stats ->> 'out_reason', draining_at IS NOT NULL FROM worker", [("no numbers", True)])
    watch.until(STATES, [("ready", 2)])
    with maker() as session:
        (worker,) = fleet.live_workers(session)
        assert (fleet.out_reason_of(worker), fleet.live_models(session)) == ("no numbers", [])
        [out] = [one for one in metrics.read_samples(session) if one.meter is declared.WORKERS_OUT]
        assert (out.labels["worker"], out.labels["reason"]) == (worker.id, "no numbers")
        assert [seen.out_reason for seen in overview_fleet.workers(session, most=9)] == ["no numbers"]
    for _ in range(2):  # heartbeats: the first may have begun before
        with maker.begin() as session:
            session.execute(text("UPDATE worker SET heartbeat_at = 'epoch'"))
        watch.until("SELECT heartbeat_at > 'epoch' FROM worker", [(True,)])
    assert watch.rows(STATES) == [("ready", 2)], "it stays out"

    host.release()
    with maker.begin() as session:
        session.execute(text("UPDATE worker SET draining_at = NULL"))
    watch.until(STATES, [("done", 2)])
    watch.until("SELECT engine_stats ? 'out_reason' FROM worker", [(False,)])
    with maker() as session:
        assert fleet.live_models(session) == ["demo"]
