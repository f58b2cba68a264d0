"""`tokenmill budgets …`: what tenants and keys may use in a day, in a month or ever. They talk to Postgres directly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

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
    tokens: Annotated[int | None, typer.Option(min=0, help="Of prompts and answers.")] = None,
    money: Annotated[str | None, typer.Option(metavar="AMOUNT", help="In units of currency, such as 12.50.")] = None,
    window: Annotated[BudgetWindow, typer.Option(help="After which it begins anew.")] = BudgetWindow.TOTAL,
    time_zone: Annotated[
        str | None, typer.Option(help="In which days and months begin, such as Europe/Berlin [default: UTC]")
    ] = None,
    key: Annotated[str | None, typer.Option(metavar="KEY_ID", help="Of this key alone.")] = None,
    warn_at: Annotated[
        str | None, typer.Option(metavar="PERCENT|none", help="Warn from there on [default: none]")
    ] = None,
    data_dir: DataDirOption = None,
) -> None:
    """Set a hard limit of what is used in a day, in a month or ever; lines beyond it wait for the next window.

    There is one for each tenant or key, unit and window; set again, it gets the new limit, and
    what is left out stays as it was.
    """
    from features.administration import budgets
    from jobs.accounts import tenants, window_budgets

    unit, limit = _limit(tokens, money)
    wanted = window_budgets.NewBudget(
        unit=unit,
        window=window,
        limit=limit,
        time_zone=window_budgets.LEFT_OUT if time_zone is None else time_zone,
        key_id=key,
        warn_percent=window_budgets.LEFT_OUT if warn_at is None else _percent(warn_at),
    )
    with administration(data_dir) as admin:
        found = budgets.put(admin, tenants.find_tenant(admin.session, tenant).id, wanted)
    _print([(tenant, found)])


@app.command("list")
def list_(
    tenant: Annotated[str | None, typer.Argument(help="Name or id [default: all tenants]")] = None,
    data_dir: DataDirOption = None,
) -> None:
    """List budgets with what is spent of them; a tenant's token budget is shown by `tokenmill tenants budget`."""
    from jobs.accounts import tenants, window_budgets

    with admin_transaction(data_dir) as session:
        owners = tenants.list_tenants(session) if tenant is None else [tenants.find_tenant(session, tenant)]
        found = [(owner.name, own) for owner in owners for own in window_budgets.allowances(session, owner.id)]
    _print(found)


@app.command()
def remove(budget_id: Annotated[str, typer.Argument(metavar="BUDGET_ID")], data_dir: DataDirOption = None) -> None:
    """Remove a budget; lines that wait for it go on."""
    from features.administration import budgets

    with administration(data_dir) as admin:
        budgets.remove(admin, budget_id)
    print(f"removed {budget_id}")


def _limit(tokens: int | None, money: str | None) -> tuple[BudgetUnit, int]:

    if (tokens is None) == (money is None):
        raise InputError("give either --tokens N or --money AMOUNT; a tenant may have a budget of each")
    if money is None:
        assert tokens is not None
        return BudgetUnit.TOKENS, tokens
    try:
        return BudgetUnit.MONEY, from_currency(money)
    except ValueError as error:
        raise InputError(f"--money is wrong: {error}. Give one such as 12.50.", param="money") from None


def _percent(given: str) -> int | None:
    if given == "none":
        return None
    if not (given.isascii() and given.isdecimal() and 1 <= int(given) <= 100):
        raise InputError(f"--warn-at is {given!r}; give 1 to 100 per cent, or `none`", param="warn_percent")
    return int(given)


def _print(found: list[tuple[str, Allowance]]) -> None:

    numbers = ("limit", "spent", "reserved", "left", "warns at %")
    print_table(
        ("id", "tenant", "key", "unit", "window", "time zone", *numbers, "begins anew"),
        [(own.budget_id, name, own.key_id, own.unit, own.window, own.time_zone, *_amounts(own)) for name, own in found],
        numbers=numbers,
    )


def _amounts(own: Allowance) -> tuple[object, ...]:

    shown = [
        in_currency(value) if own.unit is BudgetUnit.MONEY else value
        for value in (own.limit, own.spent, own.reserved, own.left)
    ]
    return (*shown, own.warn_percent, own.turns_at)
