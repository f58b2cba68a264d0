"""`tokenmill usage | quota`: usage, budgets and limits of the tenant of TOKENMILL_API_KEY on a running server.

`usage --wasted` and `--spilled` are the operator's and ask the database.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from cli.calls import Calls, server
from cli.options import AsJson, Day
from cli.table import print_table, when
from cli.transactions import DataDirOption, admin_transaction
from jobs.accounts.money import PICOS_A_UNIT, in_currency
from jobs.errors import InputError

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

_PAGE = 1000
_COUNTS = ("lines", "input_tokens", "cached_tokens", "output_tokens")
_THOUGHTS = "reasoning_tokens"
_STEPS = "document_steps"
_READING = ("reading_seconds", "reading_cost")
_GROUPS = {"day": ("day",), "model": ("model",), "key": ("key", "key_id"), "batch": ("batch_id",)}


def usage(
    *,
    by: Annotated[str, typer.Option(metavar="day,model,key,batch", help="What to group the sums by.")] = "day",
    since: Annotated[datetime | None, Day] = None,
    until: Annotated[datetime | None, Day] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print comma-separated values with exact costs.")] = False,
    as_json: AsJson = False,
    wasted: Annotated[
        bool, typer.Option(help="For operators: tokens that servers were paid for in vain, by model. Asks Postgres.")
    ] = False,
    spilled: Annotated[
        bool, typer.Option(help="For operators: what servers outside the house were paid, by model. Asks Postgres.")
    ] = False,
    data_dir: DataDirOption = None,
) -> None:
    """Show tokens, cost and GPU-seconds by day, model, key and batch; by default of the last 30 days (UTC)."""
    if not (wasted or spilled) and data_dir is not None:
        raise InputError("--data-dir is only for --wasted and --spilled; a server is asked for the rest. Leave it out.")
    if wasted or spilled:
        if by != "day" or as_csv or since is not None or until is not None or (wasted and spilled):
            name = "--wasted" if wasted else "--spilled"
            others = "--by, --since, --until, --csv and --spilled" if wasted else "--by, --since, --until and --csv"
            raise InputError(f"{name} shows the last 30 days, by model; leave {others} out")
        _show_of_operators("wasted" if wasted else "spilled", as_json=as_json, data_dir=data_dir)
        return
    query = {"group_by": by} | {
        name: f"{day:%Y-%m-%d}" for name, day in (("since", since), ("until", until)) if day is not None
    }
    with server() as calls:
        pages = list(_pages(calls, query))
    rows = [row for page in pages for row in page["data"]]
    if as_json:
        print(json.dumps(rows, indent=2))
    elif as_csv:
        _print_csv(rows, currency=pages[0]["currency"])
    else:
        _print_table(rows, by=by, page=pages[0])


def _show_of_operators(what: str, *, as_json: bool, data_dir: Path | None) -> None:
    """Print what servers were paid in vain, or outside the house."""
    with admin_transaction(data_dir) as session:
        rows = _wasted(session) if what == "wasted" else _spilled(session)
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    numbers = _OF_OPERATORS[what]
    shown = [
        (row["model"], *(row[name] if isinstance(row[name], str) else _number(row[name]) for name in numbers))
        for row in rows
    ]
    print_table(("model", *numbers), shown, numbers=numbers)


_OF_OPERATORS = {
    "wasted": ("input_tokens", "output_tokens"),
    "spilled": ("lines", "input_tokens", "output_tokens", "paid"),
}


def _wasted(session: Session) -> list[dict[str, Any]]:
    from jobs.overview.spending import wasted_by_model

    return [asdict(one) for one in wasted_by_model(session)]


def _spilled(session: Session) -> list[dict[str, Any]]:
    from jobs.overview.spending import spilled_by_model

    return [
        {
            "model": one.model,
            "lines": one.num_results,
            "input_tokens": one.input_tokens,
            "output_tokens": one.output_tokens,
            "paid": in_currency(one.picos),
        }
        for one in spilled_by_model(session)
    ]


def quota(as_json: AsJson = False) -> None:
    """Show budgets and limits: what is used, what is left, and when each resets."""
    with server() as calls:
        report = calls.get("/quota")
    if as_json:
        print(json.dumps(report, indent=2))
        return
    numbers = ("limit", "used", "reserved", "left")
    print_table(
        ("what", *numbers, "resets"),
        [
            *(_budget_row(budget, currency=report["currency"]) for budget in report["budgets"]),
            *([_overflow_row(report)] if report.get("may_overflow") or report.get("overflow_spent") else []),
            *([_LEAVING] if report.get("may_leave_house") else []),
            *map(_limit_row, report["limits"]),
        ],
        numbers=numbers,
    )
    if sys.stdout.isatty():
        for budget in report["budgets"]:
            if budget["is_warning"]:
                print(f"{_budget_name(budget, report['currency'])}: {budget['warn_percent']} % or more is spent")


def _budget_row(budget: dict[str, Any], *, currency: str) -> tuple[str, ...]:

    shown = _money if budget["unit"] == "micros" else _number
    amounts = [shown(budget[name]) for name in ("limit", "spent", "reserved", "left")]
    resets = "never" if budget["resets_at"] is None else when(budget["resets_at"])
    return (_budget_name(budget, currency), amounts[0] or "none", *amounts[1:], resets)


_LEAVING = ("late lines: may leave the house", "", "", "", "", "")


def _overflow_row(report: dict[str, Any]) -> tuple[str, ...]:
    limit = "spare capacity" if report["may_overflow"] else "not allowed"
    return ("overflow: tokens", limit, _number(report["overflow_spent"]), "", "", "never")


def _budget_name(budget: dict[str, Any], currency: str) -> str:
    whose = "" if budget["key_id"] is None else f", {budget['key_id']}"
    return f"budget: {currency if budget['unit'] == 'micros' else 'tokens'}, {budget['window']}{whose}"


def _money(micros: int | None) -> str:

    return "" if micros is None else in_currency(micros * 1_000_000)


def _limit_row(limit: dict[str, Any]) -> tuple[str, ...]:
    return (limit["name"], _number(limit["limit"]) or "none", _number(limit["used"]), "", _number(limit["left"]), "")


def _number(value: int | None) -> str:
    return "" if value is None else f"{value:,}" if sys.stdout.isatty() else str(value)


def _pages(calls: Calls, query: dict[str, Any]) -> Iterator[dict[str, Any]]:
    params = {**query, "limit": _PAGE}
    while True:
        answer = calls.get("/usage", **params)
        yield answer
        if not answer["has_more"]:
            return
        params["page"] = answer["next_page"]


def _print_csv(rows: Sequence[dict[str, Any]], *, currency: str) -> None:
    names = [
        "day",
        "model",
        "key_id",
        "key",
        "batch_id",
        *_COUNTS,
        "truncated",
        "cost",
        "cost_micros",
        "gpu_seconds",
        _STEPS,
        *_READING,
        _THOUGHTS,
    ]
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow([*names, "currency"])
    missing = dict.fromkeys((_THOUGHTS, "truncated", _STEPS, *_READING))  # which an older server does not count
    full = (missing | row for row in rows)
    writer.writerows([*(row[name] for name in names), currency] for row in full)


def _print_table(rows: Sequence[dict[str, Any]], *, by: str, page: dict[str, Any]) -> None:

    groups = [field for name in by.split(",") for field in _GROUPS[name.strip()]]
    amounts = [_Amounts.of(row) for row in rows]
    total = sum(amounts, start=_Amounts())
    numbers = ["lines", "input", "cached", "output", "truncated", f"cost {page['currency']}", "gpu seconds"]
    numbers += ["document steps", "reading seconds"] if total.document_steps else []
    width = len(numbers)
    print_table(
        (*groups, *numbers),
        [(*_names(row, groups), *own.shown()[:width]) for row, own in zip(rows, amounts, strict=True)],
        numbers=numbers,
        total=("total", *[""] * (len(groups) - 1), *total.shown()[:width]) if rows else None,
    )
    if sys.stdout.isatty() and not rows:
        print(f"no usage from {page['since']} to {page['until']} (UTC)")


def _names(row: dict[str, Any], groups: Sequence[str]) -> list[Any]:
    """Return the row's values of the groups; work on documents has no model."""
    return ["documents" if name == "model" and row[name] is None else row[name] for name in groups]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Amounts:
    """The numbers of a row."""

    counts: tuple[int, ...] = (0,) * len(_COUNTS)
    truncated: int | None = 0
    """None where the server does not know it for every line."""
    cost: Decimal = Decimal(0)
    gpu_seconds: float = 0.0
    document_steps: int = 0
    reading_seconds: float = 0.0

    @classmethod
    def of(cls, row: dict[str, Any]) -> Self:
        counts = tuple(row[name] for name in _COUNTS)
        return cls(
            counts=counts,
            truncated=row.get("truncated"),
            cost=Decimal(row["cost"]),
            gpu_seconds=row["gpu_seconds"],
            document_steps=row.get(_STEPS, 0),
            reading_seconds=row.get("reading_seconds", 0.0),
        )

    def __add__(self, other: _Amounts) -> _Amounts:
        return _Amounts(
            counts=tuple(map(sum, zip(self.counts, other.counts, strict=True))),
            truncated=None if self.truncated is None or other.truncated is None else self.truncated + other.truncated,
            cost=self.cost + other.cost,
            gpu_seconds=self.gpu_seconds + other.gpu_seconds,
            document_steps=self.document_steps + other.document_steps,
            reading_seconds=self.reading_seconds + other.reading_seconds,
        )

    def shown(self) -> list[str]:
        """Return the numbers, formatted for people in a terminal and for programs elsewhere; costs are exact."""
        counts = map(_number, (*self.counts, self.truncated))
        cost, steps = in_currency(int(self.cost * PICOS_A_UNIT)), _number(self.document_steps)
        if not sys.stdout.isatty():
            return [*counts, cost, str(self.gpu_seconds), steps, str(self.reading_seconds)]
        times = (f"{self.gpu_seconds:,.1f}", steps, f"{self.reading_seconds:,.1f}")
        return [*counts, f"{Decimal(cost):,f}", *times]
