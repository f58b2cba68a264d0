"""`tokenmill tenants …`: tenants, their budgets, limits and priorities."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from functools import partial
from typing import Annotated

import typer

from cli.options import AsJson
from cli.table import print_table
from cli.transactions import DataDirOption, admin_transaction, administration
from jobs.counted import counted
from jobs.errors import InputError
from jobs.states import AskedPriority

app = typer.Typer(help="Tenants: owners of files, batches and a budget.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="Name or id.")]


@app.command("create")
def tenants_create(
    name: Annotated[str, typer.Argument()],
    weight: Annotated[float, typer.Option(help="Share of the GPUs relative to other tenants.")] = 1.0,
    budget: Annotated[int | None, typer.Option(metavar="TOKENS", help="Token budget [default: no limit]")] = None,
    best_priority: Annotated[
        AskedPriority, typer.Option(help="The best class that its batches may ask for.")
    ] = AskedPriority.NORMAL,
    data_dir: DataDirOption = None,
) -> None:
    """Create a tenant and print its id; `tokenmill keys create NAME` gives it a key."""
    from features.administration import tenants

    with administration(data_dir) as admin:
        tenant = tenants.create(admin, name, weight=weight, limit_tokens=budget, best_priority=best_priority)
    print(tenant.id)


@app.command("budget")
def tenants_budget(
    name: Name,
    tokens: Annotated[str | None, typer.Argument(metavar="[TOKENS|none]", help="Without it, show the budget.")] = None,
    data_dir: DataDirOption = None,
) -> None:
    """Show or set a tenant's token budget; accepted batches keep their reservation."""
    from features.administration import tenants
    from jobs.accounts import budgets
    from jobs.accounts.tenants import find_tenant

    with administration(data_dir) as admin:
        tenant = find_tenant(admin.session, name)
        if tokens is not None:
            limit = _whole_number(tokens, name="TOKENS", unset="none", meaning="no limit")
            tenants.change(admin, tenant, limit_tokens=limit)
        quota = budgets.quota(admin.session, tenant.id)
    shown = "no limit" if quota.limit is None else f"limit {quota.limit}, available {quota.available}"
    print(f"{shown}, reserved {quota.reserved}, spent {quota.spent}")


@app.command("limits")
def tenants_limits(
    *,
    name: Name,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="LIMIT=N", help="May be given again; LIMIT=default restores the setting."),
    ] = None,
    data_dir: DataDirOption = None,
) -> None:
    """Show or change a tenant's limits; API processes apply a change from the next request on."""
    from features.administration import tenants
    from jobs.accounts import limits
    from jobs.accounts.tenants import find_tenant
    from jobs.settings import load_settings

    changes = dict(_limit_of(pair) for pair in change or [])
    with administration(data_dir) as admin:
        tenant = find_tenant(admin.session, name)
        if changes:
            tenants.change(admin, tenant, limits=changes)
        holding = limits.limits_of(tenant, load_settings())
        rows = [
            (limit, "none" if value is None else value, "default" if getattr(tenant, f"max_{limit}") is None else "set")
            for limit, value in asdict(holding).items()
        ]
    print_table(("limit", "value", "from"), rows, numbers=("value",))


def _limit_of(pair: str) -> tuple[str, int | None]:
    from jobs.accounts.limits import NAMES

    limit, _, value = pair.partition("=")
    if limit not in NAMES or not (value == "default" or (value.isascii() and value.isdecimal())):
        raise InputError(f"--set is {pair!r}; give LIMIT=N or LIMIT=default, where LIMIT is one of {', '.join(NAMES)}")
    return limit, None if value == "default" else int(value)


@app.command("retention")
def tenants_retention(
    name: Name,
    days: Annotated[str | None, typer.Argument(metavar="[DAYS|default]", help="Without it, show the days.")] = None,
    data_dir: DataDirOption = None,
) -> None:
    """Show or set for how many days a tenant's results are kept readable line by line."""
    from features.administration import tenants
    from jobs.accounts.tenants import find_tenant

    with administration(data_dir) as admin:
        tenant = find_tenant(admin.session, name)
        if days is not None:
            kept = _whole_number(days, name="DAYS", unset="default", meaning="TOKENMILL_RETENTION_DAYS")
            tenants.change(admin, tenant, retention_days=kept)
        kept = tenant.retention_days
    print("as set by TOKENMILL_RETENTION_DAYS" if kept is None else counted(kept, "day"))


def _whole_number(text: str, *, name: str, unset: str, meaning: str) -> int | None:
    """Return the number, or None for the word that unsets it. Raises InputError."""
    if text == unset:
        return None
    try:
        return int(text)
    except ValueError:
        message = f"{name} is {text!r}; give a whole number, or `{unset}` for {meaning}"
        raise InputError(message, param=name.lower()) from None


@app.command("delete")
def tenants_delete(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    data_dir: DataDirOption = None,
) -> None:
    """Revoke a tenant's keys, cancel its batches, and delete its batches, results and files; its bills are kept.

    A running service deletes them within a minute, and a batch that still runs when it ends.
    """
    from features.administration import tenants
    from jobs.accounts.tenants import find_tenant

    with admin_transaction(data_dir) as session:
        tenant_id = find_tenant(session, name).id
    if not yes:
        typer.confirm(f"Delete tenant {name} ({tenant_id}) with all its batches and files?", abort=True)
    with administration(data_dir) as admin:
        tenants.delete(admin, find_tenant(admin.session, tenant_id))
    print(f"deleted {tenant_id}")


@app.command("disable")
def tenants_disable(
    name: Name,
    cancel: Annotated[bool, typer.Option("--cancel", help="Also cancel its open batches.")] = False,
    data_dir: DataDirOption = None,
) -> None:
    """Accept nothing more from a tenant: it may still read, accepted batches run on, and its schedules pause."""
    from features.administration import tenants
    from jobs.accounts.tenants import find_tenant

    with administration(data_dir) as admin:
        tenant = find_tenant(admin.session, name)
        tenant_id = tenant.id
        tenants.disable(admin, tenant)
    if not cancel:
        print(f"disabled {name}; accepted batches run on")
        return
    num_cancelled = tenants.cancel_batches(partial(administration, data_dir), tenant_id)
    print(f"disabled {name} and cancelled {counted(num_cancelled, 'batch', 'batches')}")


@app.command("enable")
def tenants_enable(name: Name, data_dir: DataDirOption = None) -> None:
    """Accept work from a tenant again; each schedule resumes by its own rule for missed runs."""
    from features.administration import tenants
    from jobs.accounts.tenants import find_tenant

    with administration(data_dir) as admin:
        tenants.enable(admin, find_tenant(admin.session, name))
    print(f"enabled {name}")


@app.command("priority")
def tenants_priority(
    name: Name,
    best: Annotated[AskedPriority, typer.Argument(help="The best class that its batches may ask for.")],
    data_dir: DataDirOption = None,
) -> None:
    """Set the best class that a tenant's new batches may ask for; accepted ones keep their class."""
    from features.administration import tenants
    from jobs.accounts.tenants import find_tenant

    with administration(data_dir) as admin:
        tenants.change(admin, find_tenant(admin.session, name), best_priority=best)
    print(f"{name} may ask for {best.value} at best")


class Switch(StrEnum):
    ON = "on"
    OFF = "off"


@app.command("overflow")
def tenants_overflow(
    name: Name,
    state: Annotated[Switch, typer.Argument(metavar="on|off")],
    data_dir: DataDirOption = None,
) -> None:
    """Run batches that a tenant's token budget does not cover on spare capacity, in class overflow, or refuse them.

    Their usage does not count against the budget; accepted batches stay as they are.
    """
    from features.administration import tenants
    from jobs.accounts.tenants import find_tenant

    is_allowed = state is Switch.ON
    with administration(data_dir) as admin:
        tenants.change(admin, find_tenant(admin.session, name), may_overflow=is_allowed)
    print(f"batches of {name} beyond its token budget {'run on spare capacity' if is_allowed else 'are refused'}")


@app.command("spill")
def tenants_spill(
    name: Name,
    state: Annotated[Switch, typer.Argument(metavar="on|off")],
    data_dir: DataDirOption = None,
) -> None:
    """Let a tenant's late lines go to servers outside the house (`tokenmill worker --spill`), or keep them here.

    The prompts are sent to whoever runs those servers. Lines that have been sent are not taken back.
    """
    from features.administration import tenants
    from jobs.accounts.tenants import find_tenant

    is_allowed = state is Switch.ON
    with administration(data_dir) as admin:
        tenants.change(admin, find_tenant(admin.session, name), may_leave_house=is_allowed)
    print(f"late lines of {name} {'may leave the house' if is_allowed else 'stay in the house'}")


@app.command("list")
def tenants_list(as_json: AsJson = False, data_dir: DataDirOption = None) -> None:
    """List tenants with their budgets."""
    from jobs.accounts import budgets, tenants
    from jobs.accounts.refused_input import refused_input

    with admin_transaction(data_dir) as session:
        rows = []
        for tenant in tenants.list_tenants(session):
            quota = budgets.quota(session, tenant.id)
            refused = refused_input(session, tenant.id)
            amounts = (quota.limit, quota.reserved, quota.spent, refused.lines, refused.size_bytes)
            rows.append((tenant.id, tenant.name, tenant.weight, tenant.best_priority, *amounts, tenant.disabled_at))
    numbers = ("budget", "reserved", "spent", "refused lines", "refused bytes")
    print_table(
        ("id", "name", "weight", "best priority", *numbers, "disabled"),
        rows,
        numbers=("weight", *numbers),
        as_json=as_json,
    )
