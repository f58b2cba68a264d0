from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import func, select
from sqlalchemy.orm import Session, sessionmaker

from jobs.accounts import budgets, tenants
from jobs.errors import InputError, NotFoundError, OverBudgetError
from jobs.tables import Batch, Tenant


def test_a_tenant_without_a_limit_may_reserve_anything(session: Session, tenant: Tenant) -> None:
    budgets.reserve(session, tenant.id, 10**12)
    found = budgets.quota(session, tenant.id)
    assert (found.limit, found.reserved, found.spent, found.available) == (None, 10**12, 0, None)


def test_the_last_token_may_be_reserved_and_not_one_more(session: Session, tenant: Tenant) -> None:
    budgets.set_limit(session, tenant.id, 100)
    budgets.reserve(session, tenant.id, 100)
    with pytest.raises(OverBudgetError):
        budgets.reserve(session, tenant.id, 1)
    assert budgets.quota(session, tenant.id).available == 0


def test_a_refusal_carries_the_numbers(session: Session, make_batch: Callable[..., Batch], tenant: Tenant) -> None:
    budgets.set_limit(session, tenant.id, 1000)
    batch = make_batch(reserved_tokens=600)
    budgets.settle(session, batch.id, tenant.id, 100)
    with pytest.raises(OverBudgetError) as caught:
        budgets.reserve(session, tenant.id, 401)
    error = caught.value
    assert (error.limit, error.spent, error.reserved, error.needed) == (1000, 100, 500, 401)
    assert "needs about 401 tokens and 400 are available: the limit is 1,000, 100 are spent" in error.message
    assert error.code == "insufficient_quota"


def test_settling_beyond_the_reservation_spends_it_all_and_reserves_nothing(
    session: Session, make_batch: Callable[..., Batch], tenant: Tenant
) -> None:
    batch = make_batch(reserved_tokens=50)
    budgets.settle(session, batch.id, tenant.id, 70)
    session.refresh(batch)
    found = budgets.quota(session, tenant.id)
    assert (batch.reserved_tokens, found.reserved, found.spent) == (0, 0, 70)


def test_release_gives_back_what_is_left_once(
    session: Session, make_batch: Callable[..., Batch], tenant: Tenant
) -> None:
    batch = make_batch(reserved_tokens=50)
    budgets.settle(session, batch.id, tenant.id, 20)
    assert budgets.release(session, batch) == 30
    assert budgets.release(session, batch) == 0
    assert batch.reserved_tokens == 0
    assert budgets.quota(session, tenant.id).reserved == 0


def test_another_tenants_budget_is_untouched(
    session: Session, make_batch: Callable[..., Batch], tenant: Tenant
) -> None:
    other = tenants.create_tenant(session, "other", limit_tokens=10)
    budgets.settle(session, make_batch(reserved_tokens=50).id, tenant.id, 20)
    assert budgets.quota(session, other.id) == budgets.Quota(limit=10, reserved=0, spent=0)


def test_a_limit_below_zero_and_an_unknown_tenant_are_refused(session: Session, tenant: Tenant) -> None:
    with pytest.raises(InputError, match="limit_tokens is -1"):
        budgets.set_limit(session, tenant.id, -1)
    with pytest.raises(NotFoundError):
        budgets.set_limit(session, "tenant_nobody", 1)


def test_two_submits_at_once_cannot_both_take_the_last_tokens(
    maker: sessionmaker[Session], session: Session, tenant: Tenant
) -> None:
    budgets.set_limit(session, tenant.id, 1000)
    session.commit()
    refused: list[int] = []

    def submit() -> None:
        with maker.begin() as own:
            try:
                budgets.reserve(own, tenant.id, 300)
            except OverBudgetError as error:
                refused.append(error.needed)

    threads = [threading.Thread(target=submit) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert refused == [300] * 5
    assert budgets.quota(session, tenant.id).reserved == 900


def test_whatever_happens_the_sums_agree(session: Session, make_batch: Callable[..., Batch], tenant: Tenant) -> None:
    """Random submits, flushes, ends and limits, compared with a model of pure arithmetic."""

    class Budgets(RuleBasedStateMachine):
        @initialize(limit=st.none() | st.integers(0, 3000))
        def start(self, limit: int | None) -> None:
            session.rollback()
            self.batches: list[Batch] = []
            self.left: dict[str, int] = {}
            self.spent = 0
            self.limit = limit
            budgets.set_limit(session, tenant.id, limit)

        def reserved(self) -> int:
            return sum(self.left.values())

        @rule(tokens=st.integers(0, 1500))
        def submit(self, tokens: int) -> None:
            covered = self.limit is None or self.limit - self.spent - self.reserved() >= tokens
            if not covered:
                with pytest.raises(OverBudgetError):
                    budgets.reserve(session, tenant.id, tokens)
                return
            budgets.reserve(session, tenant.id, tokens)
            batch = copy_of(template, tokens)
            session.add(batch)
            session.flush()
            self.batches.append(batch)
            self.left[batch.id] = tokens

        @precondition(lambda self: self.batches)
        @rule(choice=st.randoms(use_true_random=False), tokens=st.integers(0, 800))
        def flush(self, choice: object, tokens: int) -> None:
            batch = choice.choice(self.batches)  # type: ignore[attr-defined]
            budgets.settle(session, batch.id, tenant.id, tokens)
            self.left[batch.id] -= min(tokens, self.left[batch.id])
            self.spent += tokens

        @precondition(lambda self: self.batches)
        @rule(choice=st.randoms(use_true_random=False))
        def end(self, choice: object) -> None:
            batch = choice.choice(self.batches)  # type: ignore[attr-defined]
            assert budgets.release(session, batch) == self.left[batch.id]
            self.left[batch.id] = 0

        @rule(limit=st.none() | st.integers(0, 3000))
        def change_limit(self, limit: int | None) -> None:
            self.limit = limit
            budgets.set_limit(session, tenant.id, limit)

        @invariant()
        def sums_agree(self) -> None:
            found = budgets.quota(session, tenant.id)
            assert (found.limit, found.reserved, found.spent) == (self.limit, self.reserved(), self.spent)
            assert session.scalar(select(func.coalesce(func.sum(Batch.reserved_tokens), 0))) == self.reserved()

    template = make_batch()
    run_state_machine_as_test(
        Budgets,
        settings=settings(
            max_examples=25, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


serial: Iterator[int] = iter(range(10**9))


def copy_of(batch: Batch, tokens: int) -> Batch:
    return Batch(
        id=f"batch_copy_{next(serial)}",
        tenant_id=batch.tenant_id,
        input_file_id=batch.input_file_id,
        endpoint=batch.endpoint,
        completion_window=batch.completion_window,
        fingerprint="x",
        expires_at=batch.expires_at,
        reserved_tokens=tokens,
    )
