"""`tokenmill models scale`: how many workers a model may have, and how many it wants now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cli.models.amounts import budget
from cli.transactions import DataDirOption, admin_transaction, administration
from jobs.accounts.money import in_currency
from jobs.errors import InputError

if TYPE_CHECKING:
    from jobs.scaling.limits import Limits

NOTHING = "–"


def scale(
    name: Annotated[str, typer.Argument(help="The name in requests.")],
    *,
    max_workers: Annotated[int | None, typer.Option(help="Most workers. Without it, the settings are shown.")] = None,
    min_workers: Annotated[
        int | None, typer.Option(help="Workers that stay without work; 0 stops the last one [default: 0]")
    ] = None,
    startup_seconds: Annotated[
        float | None, typer.Option(help="Time from the request for a worker until it computes [default: 130]")
    ] = None,
    expected_rate: Annotated[
        float | None, typer.Option(help="Tokens a second of a worker, where none was measured lately.")
    ] = None,
    worker_cost: Annotated[
        str | None, typer.Option(metavar="AMOUNT", help="What a worker costs an hour, such as 2.5.")
    ] = None,
    max_cost: Annotated[
        str | None, typer.Option(metavar="AMOUNT", help="The most that all workers may cost an hour.")
    ] = None,
    off: Annotated[bool, typer.Option("--off", help="Remove the settings: the number is no longer computed.")] = False,
    data_dir: DataDirOption = None,
) -> None:
    """Set how many workers a model may have, replacing all earlier settings, or show how many it wants now."""
    options = {
        "min_workers": min_workers,
        "startup_seconds": startup_seconds,
        "expected_rate": expected_rate,
        "worker_hour_picos": budget("--worker-cost", worker_cost),
        "max_hour_picos": budget("--max-cost", max_cost),
    }
    values = {option: value for option, value in options.items() if value is not None}
    if off:
        _require_alone(values, max_workers)
        _remove(name, data_dir)
    elif max_workers is not None:
        _set(name, {"max_workers": max_workers, **values}, data_dir)
    elif values:
        raise InputError("--max-workers is missing. A call replaces all settings; give the most workers, too.")
    else:
        _show(name, data_dir)


def shown_range(limits: Limits | None) -> str:
    """Return how many workers a model may have, as text."""
    return NOTHING if limits is None else f"{limits.min_workers} to {limits.most}"


def _require_alone(values: object, max_workers: int | None) -> None:
    if values or max_workers is not None:
        raise InputError("--off removes the settings. Leave the others out.")


def _remove(name: str, data_dir: DataDirOption) -> None:
    from features.administration import scaling

    with administration(data_dir) as admin:
        scaling.remove_limits(admin, name)
    print(f"{name}: the number of workers is no longer computed")


def _set(name: str, values: dict[str, int | float], data_dir: DataDirOption) -> None:
    from features.administration import scaling
    from jobs.scaling.limits import Limits

    limits = Limits(**values)  # type: ignore[arg-type]  # each option has the type of its setting
    with administration(data_dir) as admin:
        scaling.set_limits(admin, name, limits)
    print(f"{name}: {_sentence(limits)}")


def _show(name: str, data_dir: DataDirOption) -> None:
    from jobs.scaling.asking import ask
    from jobs.scaling.limits import limits_by_model

    with admin_transaction(data_dir) as session:
        wanted = ask(session, name)  # raises an error for a model without settings
        limits = limits_by_model(session)[name]
    print(f"{name}: wants {wanted} now; {_sentence(limits)}")


def _sentence(limits: Limits) -> str:
    from jobs.settings import load_settings

    rate = "none" if limits.expected_rate is None else f"{limits.expected_rate:g} tokens/s"
    sentence = f"{shown_range(limits)} workers, start-up {limits.startup_seconds:g} s, expected rate {rate}"
    if limits.worker_hour_picos is None or limits.max_hour_picos is None:
        return sentence
    cost, most = in_currency(limits.worker_hour_picos), in_currency(limits.max_hour_picos)
    return f"{sentence}, {cost} {load_settings().currency} a worker and hour, at most {most} an hour"
