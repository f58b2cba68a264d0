"""`tokenmill budgets …`: limits of tenants and keys per day, per month or in total. Connects to Postgres."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cli.options import AsJson
from cli.table import print_table
from cli.transactions import DataDirOption, admin_transaction, administration
from jobs.accounts.money import from_currency, in_currency
from jobs.errors import InputError
from jobs.states import BudgetUnit, BudgetWindow

if TYPE_CHECKING:
    from jobs.accounts.allowances import Allowance

app = typer.Typer(help="Budgets per day, month and key, in tokens or money.", no_args_is_help=True)


@app.command("set")
def set_(
    tenant: Annotated[str, typer.Argument(help="Name or id.")],
    *,
    tokens: Annotated[int | None, typer.Option(min=0, help="Limit in tokens of prompts and answers.")] = None,
    money: Annotated[
        str | None, typer.Option(metavar="AMOUNT", help="Limit in units of currency, such as 12.50.")
    ] = None,
    window: Annotated[BudgetWindow, typer.Option(help="Period after which the budget resets.")] = BudgetWindow.TOTAL,
    time_zone: Annotated[
        str | None, typer.Option(help="Time zone of days and months, such as Europe/Berlin [default: UTC]")
    ] = None,
    key: Annotated[str | None, typer.Option(metavar="KEY_ID", help="Only for this key.")] = None,
    warn_at: Annotated[
        str | None, typer.Option(metavar="PERCENT|none", help="Warn from this share on [default: none]")
    ] = None,
    data_dir: DataDirOption = None,
) -> None:
    """Set a hard limit on usage per day, per month or in total; lines beyond it wait for the next window.

    There is one budget per tenant or key, unit and window; setting it again changes its limit and the given options.
    """
    from features.administration import budgets
    from jobs.accounts import tenants, window_budgets

    unit, limit = _limit(tokens, money)
    budget = window_budgets.NewBudget(
        unit=unit,
        window=window,
        limit=limit,
        time_zone=window_budgets.LEFT_OUT if time_zone is None else time_zone,
        key_id=key,
        warn_percent=window_budgets.LEFT_OUT if warn_at is None else _percent(warn_at),
    )
    with administration(data_dir) as admin:
        allowance = budgets.put(admin, tenants.find_tenant(admin.session, tenant).id, budget)
    _print([(tenant, allowance)])


@app.command("list")
def list_(
    tenant: Annotated[str | None, typer.Argument(help="Name or id [default: all tenants]")] = None,
    as_json: AsJson = False,
    data_dir: DataDirOption = None,
) -> None:
    """List budgets with their usage; `tokenmill tenants budget` shows a tenant's token budget."""
    from jobs.accounts import tenants, window_budgets

    with admin_transaction(data_dir) as session:
        owners = tenants.list_tenants(session) if tenant is None else [tenants.find_tenant(session, tenant)]
        rows = [(owner.name, own) for owner in owners for own in window_budgets.allowances(session, owner.id)]
    _print(rows, as_json=as_json)


@app.command()
def remove(budget_id: Annotated[str, typer.Argument(metavar="BUDGET_ID")], data_dir: DataDirOption = None) -> None:
    """Remove a budget; lines that wait for it continue."""
    from features.administration import budgets

    with administration(data_dir) as admin:
        budgets.remove(admin, budget_id)
    print(f"removed {budget_id}")


def _limit(tokens: int | None, money: str | None) -> tuple[BudgetUnit, int]:

    if (tokens is None) == (money is None):
        raise InputError("give either --tokens N or --money AMOUNT; set two budgets to limit both")
    if money is None:
        assert tokens is not None
        return BudgetUnit.TOKENS, tokens
    try:
        return BudgetUnit.MONEY, from_currency(money)
    except ValueError as error:
        raise InputError(f"--money is wrong: {error}. Give one such as 12.50.", param="money") from None


def _percent(text: str) -> int | None:
    if text == "none":
        return None
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= 100):
        raise InputError(f"--warn-at is {text!r}; give 1 to 100 per cent, or `none`", param="warn_percent")
    return int(text)


def _print(rows: list[tuple[str, Allowance]], *, as_json: bool = False) -> None:
    numbers = ("limit", "spent", "reserved", "left", "warns at %")
    print_table(
        ("id", "tenant", "key", "unit", "window", "time zone", *numbers, "resets"),
        [(own.budget_id, name, own.key_id, own.unit, own.window, own.time_zone, *_amounts(own)) for name, own in rows],
        numbers=numbers,
        as_json=as_json,
    )


def _amounts(own: Allowance) -> tuple[object, ...]:
    shown = [
        in_currency(value) if own.unit is BudgetUnit.MONEY else value
        for value in (own.limit, own.spent, own.reserved, own.left)
    ]
    return (*shown, own.warn_percent, own.turns_at)
