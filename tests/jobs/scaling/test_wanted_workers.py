"""Tests of the schema's function: it has the rule of `jobs.scaling.rule`, and raises an error on doubt."""

from __future__ import annotations

import random
from typing import Any

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from jobs import served_adapters, served_models
from jobs.chunks import fleet
from jobs.database import connect
from jobs.engines.engine import ServingEngine, Spill
from jobs.engines.out import OUT_REASON
from jobs.errors import ConflictError, NotFoundError
from jobs.forecasts.rates import Rate, aged
from jobs.scaling.asking import ask
from jobs.scaling.limits import Limits, limits_by_model, remove_limits, set_limits
from jobs.scaling.rule import Due, Peak, decisive, needed_workers, wanted_workers
from jobs.states import CountState
from jobs.tables import DueWork, InputCount, ServingRate, Tenant
from tests.database_roles import as_scaler

HOUR = 3600.0
OUTSIDE = ServingEngine(kind="openai", spill=Spill(budget_picos=1))


@pytest.fixture
def now(session: Session) -> float:
    """The time of the session's transaction, in which all of a test happens; the model `m` exists."""
    served_models.add_model(session, "m", "/models/m")
    return float(session.scalar(text("SELECT extract(epoch FROM now())")) or 0)


def put(
    session: Session, *, now: float, limits: Limits, dues: list[Due], peaks: list[Peak] | None = None, age: float = 0.0
) -> None:
    set_limits(session, "m", limits)
    row = DueWork(
        model="m",
        measured_at=session.scalar(text("SELECT to_timestamp(:at)"), {"at": now - age}),
        deadlines=[due.at for due in dues],
        due_tokens=[due.tokens for due in dues],
        peak_times=[peak.at for peak in peaks or []],
        peaks=[peak.num_workers for peak in peaks or []],
    )
    session.merge(row)
    session.flush()


def put_rate(session: Session, rate: Rate, *, now: float, age: float = 0.0) -> None:
    measured_at = session.scalar(text("SELECT to_timestamp(:at)"), {"at": now - age})
    row = ServingRate(
        model="m",
        tokens_per_second=rate.tokens_per_second,
        token_ratio=1.0,
        is_saturated=True,
        counters={"evidence_seconds": rate.evidence_seconds},
        measured_at=measured_at,
    )
    session.merge(row)
    session.flush()


def put_workers(session: Session, number: int) -> None:
    session.execute(text("DELETE FROM worker"))
    for index in range(number):
        fleet.register(session, worker_id=f"w{index}", model="m", max_chunks=1, max_model_len=64)
    fleet.register(session, worker_id="outside", model="m", max_chunks=1, max_model_len=64, engine=OUTSIDE)


def limits_of(generator: random.Random) -> Limits:
    most = generator.randint(1, 40)
    least = generator.randint(0, most)
    hour = generator.choice([None, generator.randint(1, 10**13)])
    return Limits(
        max_workers=most,
        min_workers=generator.choice([0, least]),
        startup_seconds=generator.choice([1.0, 130.0, generator.uniform(1, 900)]),
        expected_rate=generator.choice([None, generator.uniform(1, 1000)]),
        worker_hour_picos=hour,
        max_hour_picos=None if hour is None else generator.randint(hour * most, hour * most * 2),
    )


def test_the_function_has_the_rule_on_random_cases(session: Session, now: float) -> None:
    answers = {seed: answers_of(session, random.Random(seed), now=now) for seed in range(200)}
    assert {seed: pair for seed, pair in answers.items() if pair[0] != pair[1]} == {}
    assert len({number for number, _ in answers.values()}) > 20


def answers_of(session: Session, generator: random.Random, *, now: float) -> tuple[int, int]:
    """Return the answers of the function and of the rule to one case."""
    limits = limits_of(generator)
    horizon = generator.choice([60.0, 600.0, 24 * HOUR])
    work = [
        Due(at=now + generator.uniform(-60, horizon), tokens=generator.uniform(0, 1000 * horizon))
        for _ in range(generator.choice([0, 1, 2, 20]))
    ]
    dues = decisive(work, now=now)
    peaks = [
        Peak(at=now - generator.choice([1.0, 299.0, 301.0]), num_workers=generator.randint(0, 50))
        for _ in range(generator.randint(0, 3))
    ]
    known = generator.choice([None, generator.uniform(1, 1000)])
    rate, age = Rate(tokens_per_second=known, evidence_seconds=generator.uniform(0.5, 120)), generator.uniform(0, 1200)
    live = generator.randint(0, 5)
    put(session, now=now, limits=limits, dues=dues, peaks=peaks, age=generator.uniform(-10, 290))
    put_rate(session, rate, now=now, age=age)
    put_workers(session, live)
    speed = aged(rate, age).tokens_per_second or limits.expected_rate
    needed = needed_workers(dues, limits, rate=speed, live=live, now=now)
    return ask(session, "m"), wanted_workers(needed, peaks, limits, now=now)


def test_a_worker_that_claims_nothing_does_not_count(session: Session, now: float) -> None:
    limits = Limits(max_workers=9, startup_seconds=600, expected_rate=10.0)
    put(session, now=now, limits=limits, dues=[Due(at=now + 1700, tokens=10 * 1100.0)])
    put_workers(session, 1)
    assert ask(session, "m") == 1
    broken = f"""engine_stats = '{{"{OUT_REASON}": "broken"}}'"""
    for out in ("draining_at = now()", broken, "spill_budget_picos = 1"):
        session.execute(text("UPDATE worker SET draining_at = NULL, engine_stats = NULL, spill_budget_picos = NULL"))
        session.connection().exec_driver_sql(f"UPDATE worker SET {out}")
        assert ask(session, "m") == 2


@pytest.mark.parametrize("counted", ["m", "adapter"])
def test_an_input_that_workers_count_wants_one(
    session: Session, now: float, tenant: Tenant, make_file: Any, counted: str
) -> None:
    served_adapters.add_adapter(session, "adapter", base="m", adapter="a")
    put(session, now=now, limits=Limits(max_workers=2), dues=[])
    assert ask(session, "m") == 0
    file = make_file()
    columns = {"endpoint": "/v1/chat/completions", "priority": "normal", "completion_window": "24h"}
    row = InputCount(
        id="c", tenant_id=tenant.id, input_file_id=file.id, model=counted, state=CountState.COUNTING, **columns
    )
    session.add(row)
    session.flush()
    assert ask(session, "m") == 1


@pytest.mark.parametrize("name", ["m'; DROP TABLE batch; --", "", "other"])
def test_an_unknown_model_is_an_error(session: Session, now: float, name: str) -> None:
    with pytest.raises(NotFoundError) as raised:
        ask(session, name)
    assert raised.value.code == "model_not_found"


def test_null_is_an_error(session: Session) -> None:
    with pytest.raises(DBAPIError) as raised:
        session.execute(text("SELECT tokenmill_wanted_workers(NULL)"))
    assert isinstance(raised.value.orig, psycopg.errors.NoDataFound)


def test_a_model_without_settings_is_an_error(session: Session, now: float) -> None:
    with pytest.raises(ConflictError) as raised:
        ask(session, "m")
    assert raised.value.code == "no_scaling_settings"


@pytest.mark.parametrize("age", [301.0, -301.0])
def test_an_old_measurement_is_an_error_and_one_of_the_future(session: Session, now: float, age: float) -> None:
    put(session, now=now, limits=Limits(max_workers=2), dues=[], age=age)
    with pytest.raises(ConflictError) as raised:
        ask(session, "m")
    assert raised.value.code == "work_not_measured"


def test_work_that_was_never_measured_is_an_error(session: Session, now: float) -> None:
    set_limits(session, "m", Limits(max_workers=2))
    with pytest.raises(ConflictError) as raised:
        ask(session, "m")
    assert raised.value.code == "work_not_measured"


@pytest.mark.parametrize("rate", [0.0, -1.0, float("inf"), float("nan")])
def test_a_rate_that_cannot_be_is_an_error(session: Session, now: float, rate: float) -> None:
    put(session, now=now, limits=Limits(max_workers=2), dues=[Due(at=now + 60, tokens=5)])
    put_rate(session, Rate(tokens_per_second=rate, evidence_seconds=60), now=now)
    with pytest.raises(ConflictError) as raised:
        ask(session, "m")
    assert raised.value.code == "work_contradicts_itself"


@pytest.mark.parametrize("tokens", [-1.0, float("inf"), float("nan")])
def test_tokens_that_cannot_be_are_an_error(session: Session, now: float, tokens: float) -> None:
    put(session, now=now, limits=Limits(max_workers=2, expected_rate=1), dues=[Due(at=now + 60, tokens=tokens)])
    with pytest.raises(ConflictError) as raised:
        ask(session, "m")
    assert raised.value.code == "work_contradicts_itself"


def test_the_scaler_may_ask_and_changes_nothing(session: Session, now: float, database_url: str) -> None:
    put(session, now=now, limits=Limits(max_workers=2), dues=[Due(at=now + 60, tokens=5)])
    session.commit()
    engine = connect(as_scaler(database_url))
    with engine.connect() as connection:
        connection.execute(text("SET default_transaction_read_only = on"))
        assert connection.scalar(text("SELECT tokenmill_wanted_workers('m')")) == 1
    engine.dispose()


def test_no_other_table_or_operator_takes_the_place_of_ours(session: Session, now: float, database_url: str) -> None:
    put(session, now=now, limits=Limits(max_workers=2), dues=[])
    session.commit()
    engine = connect(as_scaler(database_url))
    with engine.connect() as connection:
        connection.execute(text("CREATE TEMPORARY TABLE scaling AS SELECT 'm' AS model, 99 AS min_workers"))
        connection.execute(text("SET LOCAL search_path = pg_temp, public"))
        assert connection.scalar(text("SELECT public.tokenmill_wanted_workers('m')")) == 0
    engine.dispose()


def test_settings_are_kept_replaced_and_removed_with_the_model(session: Session, now: float) -> None:
    first = Limits(max_workers=4, min_workers=1, worker_hour_picos=10**12, max_hour_picos=3 * 10**12)
    set_limits(session, "m", first)
    assert limits_by_model(session) == {"m": first}
    assert first.most == 3
    set_limits(session, "m", Limits(max_workers=2))
    assert limits_by_model(session) == {"m": Limits(max_workers=2)}
    remove_limits(session, "m")
    with pytest.raises(NotFoundError):
        remove_limits(session, "m")
    set_limits(session, "m", first)
    served_models.remove_model(session, "m")
    assert limits_by_model(session) == {}
