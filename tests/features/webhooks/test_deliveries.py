from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import select, text
from sqlalchemy.orm import Session, sessionmaker

from features.webhooks import deliveries, endpoints
from features.webhooks.deliveries import PAUSES, ClaimedDelivery
from features.webhooks.endpoints import EndpointChange
from features.webhooks.events import emit
from features.webhooks.sending import Answer
from features.webhooks.states import DeliveryState
from features.webhooks.tables import WebhookAttempt, WebhookDelivery, WebhookEndpoint
from jobs.accounts import tenants
from jobs.errors import ConflictError, FencedOutError, NotFoundError
from jobs.states import EventType
from jobs.tables import Tenant
from tests.all_settings import Settings
from tests.database_roles import as_superuser_do
from tests.features.webhooks.builders import URL, add_endpoint

OK = Answer(milliseconds=12, status_code=200, text="thanks")
DOWN = Answer(milliseconds=34, status_code=503, text="away")


@pytest.fixture
def endpoint(session: Session, tenant: Tenant) -> WebhookEndpoint:
    return add_endpoint(session, tenant.id)


def note(session: Session, tenant: Tenant, count: int = 1) -> None:
    for number in range(count):
        emit(session, tenant.id, EventType.BATCH_COMPLETED, {"id": f"batch_{number}"})
    session.commit()


def claim(session: Session, *, limit: int = 10, a_tenant: int = 10, **busy: int) -> list[ClaimedDelivery]:
    claimed = deliveries.claim(session, limit=limit, a_tenant=a_tenant, busy=busy)
    session.commit()
    return claimed


def record(session: Session, claimed: ClaimedDelivery, answer: Answer) -> DeliveryState | None:
    try:
        state = deliveries.record(session, claimed, answer)
    except FencedOutError:
        session.rollback()
        return None
    session.commit()
    session.expire_all()
    return state


def let_pass(session: Session, time: timedelta) -> None:
    """Move due times, and the start of endpoints' failures, into the past."""
    for statement in (
        "UPDATE webhook_delivery SET due_at = due_at - CAST(:time AS interval)",
        "UPDATE webhook_endpoint SET failing_since = failing_since - CAST(:time AS interval), "
        "old_secret_until = old_secret_until - CAST(:time AS interval)",
        "UPDATE webhook_delivery SET ended_at = ended_at - CAST(:time AS interval)",
    ):
        session.execute(text(statement), {"time": time})
    session.commit()
    session.expire_all()


def test_a_claim_has_all_that_a_request_needs(session: Session, tenant: Tenant, endpoint: WebhookEndpoint) -> None:
    note(session, tenant)
    (claimed,) = claim(session)
    assert (claimed.url, claimed.signing_secrets, claimed.event_type) == (URL, [endpoint.secret], "batch.completed")
    assert claimed.event_data == {"id": "batch_0"}
    assert 0 <= claimed.claimed_at - claimed.event_at <= 60
    assert abs(claimed.claimed_at - datetime.now(UTC).timestamp()) < 60


def test_a_claim_is_good_for_its_owner_only_whatever_the_fence(
    session: Session, tenant: Tenant, endpoint: WebhookEndpoint
) -> None:
    """A restored database issues the same fence again."""
    note(session, tenant)
    (lost,) = claim(session)
    session.execute(text("UPDATE webhook_delivery SET fence = 0, claimed_by = NULL, due_at = now()"))
    session.commit()
    (claimed,) = claim(session)
    assert claimed.fence == lost.fence
    assert record(session, lost, DOWN) is None
    assert record(session, claimed, OK) is DeliveryState.DELIVERED
    assert [attempt.status_code for attempt in session.scalars(select(WebhookAttempt))] == [200]


def test_a_claimed_delivery_is_nobody_elses_until_its_claim_ends(
    session: Session, tenant: Tenant, endpoint: WebhookEndpoint
) -> None:
    note(session, tenant)
    (lost,) = claim(session)
    assert claim(session) == []
    let_pass(session, deliveries.CLAIM)
    (mine,) = claim(session)
    assert (mine.delivery_id, mine.event_id, mine.fence) == (lost.delivery_id, lost.event_id, lost.fence + 1)
    assert record(session, lost, DOWN) is None  # fenced out
    assert record(session, mine, OK) is DeliveryState.DELIVERED
    assert record(session, mine, OK) is None
    (attempts,) = deliveries.attempts_of(session, [mine.delivery_id]).values()
    assert [(one.number, one.status_code, one.milliseconds, one.answer) for one in attempts] == [(2, 200, 12, "thanks")]


def test_two_workers_claim_different_deliveries(
    session: Session, maker: sessionmaker[Session], tenant: Tenant, endpoint: WebhookEndpoint
) -> None:
    note(session, tenant, 5)
    with maker() as other:
        first = deliveries.claim(other, limit=3, a_tenant=10, busy={})  # and has not committed yet
        second = deliveries.claim(session, limit=10, a_tenant=10, busy={})
        assert len(first) == 3
        assert len(second) == 2
        assert {one.delivery_id for one in first}.isdisjoint(one.delivery_id for one in second)
        session.rollback()


def test_of_each_tenant_only_a_few_are_claimed_at_once(
    session: Session, tenant: Tenant, endpoint: WebhookEndpoint
) -> None:
    others = [tenants.create_tenant(session, name) for name in ("one", "two")]
    note(session, tenant, 9)
    for other in others:
        add_endpoint(session, other.id)
        note(session, other, 2)
    claimed = Counter(one.tenant_id for one in claim(session, a_tenant=3, **{others[0].id: 2}))
    assert claimed == {tenant.id: 3, others[0].id: 1, others[1].id: 2}
    assert claim(session, a_tenant=3, **{tenant.id: 3, others[0].id: 3}) == []


def test_tries_come_with_growing_pauses_over_a_day_and_then_it_is_given_up(
    session: Session, tenant: Tenant, endpoint: WebhookEndpoint
) -> None:
    assert timedelta(hours=23, minutes=55) < sum(PAUSES, timedelta()) < timedelta(hours=24, minutes=5)
    assert list(PAUSES) == sorted(PAUSES)
    note(session, tenant)
    event_ids = set()
    for pause in PAUSES:
        (claimed,) = claim(session)
        event_ids.add(claimed.event_id)
        before = session.scalars(text("SELECT clock_timestamp()")).one()
        assert record(session, claimed, DOWN) is DeliveryState.PENDING
        after = session.scalars(text("SELECT clock_timestamp()")).one()
        due_at = session.get_one(WebhookDelivery, claimed.delivery_id).due_at
        assert before + 0.9 * pause <= due_at <= after + 1.1 * pause
        let_pass(session, -timedelta(hours=1))  # the test itself may take longer than the first pause
        assert claim(session) == []
        let_pass(session, timedelta(hours=1) + 1.1 * pause)
    (claimed,) = claim(session)
    assert record(session, claimed, DOWN) is DeliveryState.FAILED
    let_pass(session, timedelta(days=2))
    assert claim(session) == []
    assert event_ids == {claimed.event_id}
    delivery = session.get_one(WebhookDelivery, claimed.delivery_id)
    assert (delivery.num_tries, delivery.ended_at is None) == (len(PAUSES) + 1, False)


def test_an_endpoint_may_ask_for_a_longer_pause(session: Session, tenant: Tenant, endpoint: WebhookEndpoint) -> None:
    note(session, tenant, 2)
    later, much_later = claim(session)
    for claimed, asked in ((later, timedelta(minutes=20)), (much_later, timedelta(days=9))):
        record(session, claimed, Answer(milliseconds=1, status_code=429, retry_after=asked))
    let_pass(session, timedelta(minutes=19))
    assert claim(session) == []
    let_pass(session, timedelta(minutes=1))
    assert [one.delivery_id for one in claim(session)] == [later.delivery_id]
    let_pass(session, timedelta(minutes=40))
    assert much_later.delivery_id in [one.delivery_id for one in claim(session)]


def test_an_endpoint_that_is_gone_is_disabled_with_all_that_waits_for_it(
    session: Session, tenant: Tenant, endpoint: WebhookEndpoint
) -> None:
    note(session, tenant, 3)
    (claimed,) = claim(session, limit=1)
    assert record(session, claimed, Answer(milliseconds=1, status_code=410)) is DeliveryState.FAILED
    assert (endpoint.disabled_at is None, endpoint.disabled_reason) == (False, "it answered 410 Gone")
    rows = deliveries.list_deliveries(session, tenant.id, endpoint.id).data
    assert [row.state for row in rows] == ["failed"] * 3
    assert Counter(row.problem for row in rows) == {None: 1, "not sent: it answered 410 Gone": 2}
    note(session, tenant)
    assert len(deliveries.list_deliveries(session, tenant.id, endpoint.id).data) == 3  # nothing is recorded for it


def test_an_endpoint_that_fails_for_days_is_disabled_unless_it_answers_once(
    session: Session, tenant: Tenant, endpoint: WebhookEndpoint
) -> None:
    def fail() -> None:
        (claimed,) = claim(session)
        record(session, claimed, Answer(milliseconds=1, error="no answer within 15 s"))
        session.execute(text("UPDATE webhook_delivery SET state = 'failed', ended_at = now()"))
        note(session, tenant)

    note(session, tenant)
    for _ in range(4):
        fail()
        let_pass(session, timedelta(days=1))
    fail()
    assert endpoint.disabled_at is None
    (claimed,) = claim(session)
    record(session, claimed, OK)
    assert endpoint.failing_since is None
    note(session, tenant)
    for _ in range(4):
        fail()
        let_pass(session, timedelta(days=1))
    let_pass(session, timedelta(hours=23))
    fail()
    assert endpoint.disabled_at is None
    let_pass(session, timedelta(hours=2))
    (claimed,) = claim(session)
    record(session, claimed, DOWN)
    assert endpoint.disabled_at is not None
    assert str(endpoint.disabled_reason).startswith("every request failed since ")


def test_a_failure_after_quiet_days_and_one_of_a_new_url_begin_anew(
    session: Session, tenant: Tenant, endpoint: WebhookEndpoint, settings: Settings
) -> None:
    def fail() -> datetime | None:
        note(session, tenant)
        (claimed,) = claim(session)
        record(session, claimed, DOWN)
        session.execute(text("UPDATE webhook_delivery SET state = 'failed', ended_at = now()"))
        session.commit()
        return endpoint.failing_since

    first = fail()
    let_pass(session, timedelta(days=6))
    second = fail()  # nothing was sent in between
    assert endpoint.disabled_at is None
    assert first is not None
    assert second is not None
    assert second >= first
    let_pass(session, timedelta(days=1))
    third = fail()
    assert third == second - timedelta(days=1)
    wanted = EndpointChange(url="https://example.com/other")
    endpoints.change_endpoint(session, tenant.id, endpoint.id, wanted, settings)
    session.commit()
    assert endpoint.failing_since is None


def test_a_replay_is_sent_under_the_same_event_id_with_all_its_pauses(
    session: Session, tenant: Tenant, endpoint: WebhookEndpoint
) -> None:
    note(session, tenant)
    (first,) = claim(session)
    record(session, first, OK)
    replayed = deliveries.replay(session, tenant.id, endpoint.id, first.delivery_id)
    assert (replayed.state, replayed.num_tries, replayed.ended_at) == ("pending", 0, None)
    (second,) = claim(session)
    assert (second.event_id, second.delivery_id) == (first.event_id, first.delivery_id)
    record(session, second, DOWN)
    assert deliveries.replay(session, tenant.id, endpoint.id, first.delivery_id).state == "pending"
    (third,) = claim(session)  # now, and not after its pause
    record(session, third, OK)
    attempts = deliveries.attempts_of(session, [first.delivery_id])[first.delivery_id]
    assert [attempt.status_code for attempt in attempts] == [200, 503, 200]


def test_what_cannot_be_replayed_is_said(session: Session, tenant: Tenant, endpoint: WebhookEndpoint) -> None:
    note(session, tenant)
    (claimed,) = claim(session)
    with pytest.raises(NotFoundError, match="has no delivery with id 'whdel_none'"):
        deliveries.replay(session, tenant.id, endpoint.id, "whdel_none")
    other = add_endpoint(session, tenant.id, url="https://example.com/other")
    with pytest.raises(NotFoundError):
        deliveries.replay(session, tenant.id, other.id, claimed.delivery_id)
    stranger = tenants.create_tenant(session, "stranger")
    with pytest.raises(NotFoundError, match="No webhook endpoint"):
        deliveries.replay(session, stranger.id, endpoint.id, claimed.delivery_id)
    endpoints.disable(session, endpoint.id, reason="disabled by its owner")
    with pytest.raises(ConflictError, match="disabled by its owner"):
        deliveries.replay(session, tenant.id, endpoint.id, claimed.delivery_id)


def test_for_a_day_an_event_is_signed_with_the_old_secret_too(
    session: Session, tenant: Tenant, endpoint: WebhookEndpoint
) -> None:
    old = endpoint.secret
    endpoints.rotate_secret(session, tenant.id, endpoint.id, keep_old=True)
    note(session, tenant, 2)
    (claimed,) = claim(session, limit=1)
    assert claimed.signing_secrets == [endpoint.secret, old]
    assert endpoint.secret != old
    assert deliveries.sample_request(session, endpoint).signing_secrets == [endpoint.secret, old]
    let_pass(session, timedelta(hours=24))
    assert all(one.signing_secrets == [endpoint.secret] for one in claim(session))
    assert deliveries.sample_request(session, endpoint).signing_secrets == [endpoint.secret]
    endpoints.rotate_secret(session, tenant.id, endpoint.id, keep_old=False)
    assert endpoint.old_secret is None


def test_the_log_is_kept_for_a_while(
    session: Session, maker: sessionmaker[Session], tenant: Tenant, endpoint: WebhookEndpoint
) -> None:
    note(session, tenant, 2)
    ended, waiting = claim(session)
    record(session, ended, OK)
    let_pass(session, deliveries.KEPT_FOR - timedelta(minutes=1))
    assert deliveries.forget(maker) == 0
    let_pass(session, timedelta(minutes=2))
    assert deliveries.forget(maker) == 1
    assert [row.id for row in deliveries.list_deliveries(session, tenant.id, endpoint.id).data] == [waiting.delivery_id]


def test_a_look_costs_no_more_for_a_tenant_with_many(
    session: Session, tenant: Tenant, endpoint: WebhookEndpoint
) -> None:
    """By the plan: tenants by the index one after the other, and of each no more rows than may be claimed."""
    session.execute(
        text("""
            INSERT INTO webhook_delivery (id, endpoint_id, tenant_id, event_id, event_type, event_data, due_at)
            SELECT 'whdel_' || n, :endpoint_id, :tenant_id, 'evt_' || n, 'batch.failed', '{}', now() - interval '1 hour'
            FROM generate_series(1, 5000) AS n
        """),
        {"endpoint_id": endpoint.id, "tenant_id": tenant.id},
    )
    as_superuser_do(session, "ANALYZE webhook_delivery")
    values = {"limit": 100, "a_tenant": 4, "lease": deliveries.CLAIM, "busy_tenants": [], "busy_allowed": []}
    values["owner"] = "claim"
    explained = text("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + deliveries._CLAIM.text)
    plan = session.execute(explained, values).scalar_one()[0]["Plan"]

    def most_rows(node: dict[str, object]) -> float:
        own = float(node["Actual Rows"]) * float(node["Actual Loops"])  # type: ignore[arg-type]  # JSON's numbers
        below = node.get("Plans", [])
        assert isinstance(below, list)
        return max([own, *map(most_rows, below)])

    assert most_rows(plan) <= 20
