"""Window budgets per day, month or in total: of a tenant or one of its keys, in tokens or money, beside its own budget.

Nothing is reserved for a batch: the maximum usage of running lines is their chunks' cover (`covered_tokens`,
`covered_picos`), so `reserved` is that sum and is not stored. Invariants at every commit: spent = Σ ledger of the
window, and spent + reserved ≤ limit, or ≤ what was committed before that limit was set. All under the lock of the
tenant's budget row; a window is reset by the first holder of that lock after its end.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import Enum
from typing import Any, Literal

from sqlalchemy import ColumnElement, bindparam, delete, func, or_, select, text, update
from sqlalchemy.orm import Session

from jobs.accounts.allowances import Allowance
from jobs.accounts.windows import window_at, zone_of
from jobs.database import clock
from jobs.errors import InputError, NotFoundError
from jobs.ids import new_id
from jobs.states import BudgetUnit, BudgetWindow
from jobs.tables import ApiKey, Budget, WindowBudget

log = logging.getLogger(__name__)

MAX_AMOUNT = 10**27
"""Tokens, or pico-units of currency: a million billions."""
UTC = "UTC"


class LeftOut(Enum):
    """Marks an omitted value: an existing budget keeps its own, a new one has none."""

    LEFT_OUT = "left out"


LEFT_OUT: Literal[LeftOut.LEFT_OUT] = LeftOut.LEFT_OUT


@dataclass(frozen=True, slots=True, kw_only=True)
class NewBudget:
    """An operator's request for a budget."""

    unit: BudgetUnit
    window: BudgetWindow
    limit: int
    time_zone: str | LeftOut | None = LEFT_OUT
    """None: UTC."""
    key_id: str | None = None
    warn_percent: int | LeftOut | None = LEFT_OUT
    """None: no warning."""

    def check(self) -> None:
        """Raise InputError where a value is not allowed."""
        if isinstance(self.time_zone, str):
            zone_of(self.time_zone)
        if not 0 <= self.limit <= MAX_AMOUNT:
            raise InputError(f"the limit is {self.limit}; give 0 to {MAX_AMOUNT}", param="limit")
        if isinstance(self.warn_percent, int) and not 1 <= self.warn_percent <= 100:
            raise InputError(f"warn-at is {self.warn_percent}; give 1 to 100 per cent", param="warn_percent")


def set_budget(session: Session, tenant_id: str, request: NewBudget) -> Allowance:
    """Set a budget of a tenant or key. There is one for each unit and window; an existing one gets the new limit.

    Omitted values keep those of the existing budget. Earlier usage in its window counts too. Tokens already spent and
    reserved may exceed the limit: they stay, and nothing is added. Raises InputError, or NotFoundError for a key of
    another tenant.
    """
    request.check()
    if (
        request.key_id is not None
        and session.scalar(select(ApiKey.id).where(ApiKey.id == request.key_id, ApiKey.tenant_id == tenant_id)) is None
    ):
        raise NotFoundError(f"the tenant has no key {request.key_id!r}; `tokenmill keys list` shows the ids")
    _lock_alone(session, tenant_id)
    row = _find(session, tenant_id, request)
    if row is None:
        row = WindowBudget(id=new_id("budget"), tenant_id=tenant_id, api_key_id=request.key_id)
        row.unit, row.window_kind, row.time_zone = request.unit.value, request.window.value, UTC
        session.add(row)
    if not isinstance(request.time_zone, LeftOut):
        row.time_zone = request.time_zone or UTC
    if not isinstance(request.warn_percent, LeftOut):
        row.warn_percent = request.warn_percent
    row.limit_amount, row.warned_at = Decimal(request.limit), None
    row.window_start, row.window_end = _window_of(row, clock(session))
    row.spent_amount = _spent(session, row)
    row.committed_amount = row.spent_amount + _reserved(session, row)
    session.flush()
    _count(session, tenant_id)
    return _allowance(row, clock(session), reserved=int(_reserved(session, row)))


def remove_budget(session: Session, budget_id: str) -> None:
    """Remove a window budget; work that waits for it continues. Raises NotFoundError."""
    tenant_id = session.scalar(select(WindowBudget.tenant_id).where(WindowBudget.id == budget_id))
    if tenant_id is None:
        raise NotFoundError(f"there is no budget {budget_id!r}; `tokenmill budgets list` shows the ids")
    _lock_alone(session, tenant_id)
    session.execute(delete(WindowBudget).where(WindowBudget.id == budget_id))
    _count(session, tenant_id)


def allowances(session: Session, tenant_id: str) -> list[Allowance]:
    """Return all current window budgets of a tenant, its own before those of its keys; changes nothing."""
    return allowances_of(session, [tenant_id]).get(tenant_id, [])


def allowances_of(session: Session, tenant_ids: Collection[str]) -> dict[str, list[Allowance]]:
    """Return the same for several tenants, by id, of those that have some: as many queries as for one."""
    tenants_value = {"tenant_ids": list(tenant_ids)}
    with_now = session.execute(_OF_TENANTS, tenants_value, execution_options={"populate_existing": True}).all()
    if not with_now:
        return {}
    rows, (now, *_) = zip(*with_now, strict=True)
    values = {
        "tenant_ids": [row.tenant_id for row in rows],
        "by_key": any(row.api_key_id is not None for row in rows),
    }
    reserved_rows = session.execute(_RESERVED_OF, values).all()
    result: dict[str, list[Allowance]] = {}
    for row in rows:
        result.setdefault(row.tenant_id, []).append(_allowance(row, now, reserved=_held_for(row, reserved_rows)))
    return result


def _held_for(row: WindowBudget, reserved_rows: Sequence[Any]) -> int:
    """Return the cover of running lines that counts against a budget."""
    own = [one for one in reserved_rows if one.tenant_id == row.tenant_id and row.api_key_id in (None, one.api_key_id)]
    return int(sum(one.tokens if row.unit == BudgetUnit.TOKENS else one.picos for one in own))


def warning(budgets: Sequence[Allowance], key_id: str | None, *, currency: str) -> str | None:
    """Return a sentence for the owner of a key where a budget that applies to it has reached its warning threshold."""
    for allowance in budgets:
        if allowance.key_id in (None, key_id) and allowance.is_warning:
            return f"{allowance.warn_percent} % or more are spent: {allowance.described(currency)}."
    return None


def current(session: Session, tenant_id: str, key_id: str | None) -> list[Allowance]:
    """Reset the windows that are over, and return the budgets that apply to a key. The budget row is locked."""
    now = clock(session)
    rows = _turned(session, tenant_id, key_id, now)
    return [_allowance(row, now, reserved=int(_reserved(session, row))) for row in rows]


def spend(
    session: Session, tenant_id: str, key_id: str | None, *, tokens: int, picos: int, is_limited: bool = True
) -> None:
    """Book a flush's usage in every window that it belongs to. The budget row is locked.

    A flush that began before a window was reset by another transaction belongs to the window before, like its ledger
    entry. Usage of lines started without cover (`is_limited` False) is committed, whatever the limit is by now.
    """
    now = clock(session)
    for row in _turned(session, tenant_id, key_id, now):
        if row.window_start is not None and now < row.window_start:
            continue
        row.spent_amount += tokens if row.unit == BudgetUnit.TOKENS else picos
        if not is_limited:
            row.committed_amount = max(row.committed_amount, row.spent_amount + _reserved(session, row))
        _warn(row, now)
    session.flush()


def _warn(row: WindowBudget, now: datetime) -> None:
    if row.warn_percent is None or row.warned_at is not None:
        return
    if row.spent_amount * 100 >= row.limit_amount * row.warn_percent:
        row.warned_at = now
        log.warning(
            "budget reached its threshold tenant_id=%s key_id=%s budget_id=%s unit=%s spent=%s limit=%s",
            row.tenant_id, row.api_key_id, row.id, row.unit, row.spent_amount, row.limit_amount,
        )  # fmt: skip


def _turned(session: Session, tenant_id: str, key_id: str | None, now: datetime) -> Sequence[WindowBudget]:
    query = select(WindowBudget).where(WindowBudget.tenant_id == tenant_id, _holds_for(key_id))
    rows = session.scalars(query.order_by(WindowBudget.id), execution_options={"populate_existing": True}).all()
    for row in rows:
        if row.window_end is not None and now >= row.window_end:
            row.window_start, row.window_end = _window_of(row, now)
            row.spent_amount, row.committed_amount, row.warned_at = Decimal(0), _reserved(session, row), None
    session.flush()
    return rows


def _holds_for(key_id: str | None) -> ColumnElement[bool]:
    return or_(WindowBudget.api_key_id.is_(None), WindowBudget.api_key_id == key_id)


def _find(session: Session, tenant_id: str, request: NewBudget) -> WindowBudget | None:
    return session.scalar(
        select(WindowBudget).where(
            WindowBudget.tenant_id == tenant_id,
            WindowBudget.api_key_id.is_not_distinct_from(request.key_id),
            WindowBudget.unit == request.unit.value,
            WindowBudget.window_kind == request.window.value,
        ),
        execution_options={"populate_existing": True},
    )


def _allowance(row: WindowBudget, now: datetime, *, reserved: int) -> Allowance:
    is_over = row.window_end is not None and now >= row.window_end
    return Allowance(
        budget_id=row.id,
        key_id=row.api_key_id,
        unit=BudgetUnit(row.unit),
        window=BudgetWindow(row.window_kind),
        time_zone=row.time_zone,
        limit=int(row.limit_amount),
        spent=0 if is_over else int(row.spent_amount),
        reserved=reserved,
        warn_percent=row.warn_percent,
        turns_at=_window_of(row, now)[1],
    )


def _window_of(row: WindowBudget, moment: datetime) -> tuple[datetime | None, datetime | None]:
    return window_at(moment, BudgetWindow(row.window_kind), zone_of(row.time_zone))


def _spent(session: Session, row: WindowBudget) -> Decimal:
    values = {"tenant_id": row.tenant_id, "key_id": row.api_key_id, "start": row.window_start}
    return Decimal(session.scalar(_SPENT[BudgetUnit(row.unit)], values) or 0)


def _reserved(session: Session, row: WindowBudget) -> Decimal:
    values = {"tenant_id": row.tenant_id, "key_id": row.api_key_id}
    return Decimal(session.scalar(_RESERVED[BudgetUnit(row.unit)], values) or 0)


def _lock_alone(session: Session, tenant_id: str) -> None:
    """Lock the budget row also against covering that saw no window budget: `jobs.chunks.covering`."""
    if session.scalar(select(Budget.tenant_id).where(Budget.tenant_id == tenant_id).with_for_update()) is None:
        raise NotFoundError(f"tenant {tenant_id!r} has no budget; is the tenant id right?")


def _count(session: Session, tenant_id: str) -> None:
    number = select(func.count()).where(WindowBudget.tenant_id == tenant_id).scalar_subquery()
    session.execute(update(Budget).where(Budget.tenant_id == tenant_id).values(num_window_budgets=number))


def _by_unit(statement: str, **columns: str) -> dict[BudgetUnit, Any]:
    return {unit: text(statement.format(amount=columns[unit.value])) for unit in BudgetUnit}


_SPENT = _by_unit(
    """
    SELECT sum({amount}) FROM ledger JOIN batch ON batch.id = ledger.batch_id
    WHERE ledger.tenant_id = :tenant_id AND (CAST(:key_id AS text) IS NULL OR batch.api_key_id = :key_id)
        AND ledger.created_at >= coalesce(CAST(:start AS timestamptz), '-infinity')
    """,
    tokens="ledger.input_tokens + ledger.output_tokens",
    money="ledger.cost_picos",
)

# Of leased chunks, by their index: as many as the fleet runs.
_RESERVED = _by_unit(
    """
    SELECT sum({amount}) FROM chunk JOIN batch ON batch.id = chunk.batch_id
    WHERE chunk.state = 'leased' AND chunk.tenant_id = :tenant_id
        AND (CAST(:key_id AS text) IS NULL OR batch.api_key_id = :key_id)
    """,
    tokens="chunk.covered_tokens",
    money="chunk.covered_picos",
)

# Built once, as every view of a batch runs it.
_OF_TENANTS = (
    select(WindowBudget, func.now())
    .where(WindowBudget.tenant_id.in_(bindparam("tenant_ids", expanding=True)))
    .order_by(WindowBudget.api_key_id.nulls_first(), WindowBudget.unit, WindowBudget.window_kind)
)
_RESERVED_OF = text("""
    SELECT tenant_id, api_key_id, sum(covered_tokens) AS tokens, sum(covered_picos) AS picos
    FROM (
        SELECT tenant_id, covered_tokens, covered_picos,
            CASE WHEN :by_key THEN (SELECT api_key_id FROM batch WHERE batch.id = chunk.batch_id) END AS api_key_id
        FROM chunk WHERE state = 'leased' AND tenant_id = ANY(:tenant_ids)
    ) AS held
    GROUP BY tenant_id, api_key_id
""")
