"""`tokenmill models …`: models that batches may use, and their prices. Connects to Postgres."""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.data_dir import default_data_dir
from cli.models.amounts import factor, price
from cli.models.pulling import SMOLLM2, pull_smollm2
from cli.models.repriced import print_repriced
from cli.models.scaling import scale, shown_range
from cli.options import AsJson
from cli.served_model import is_adapter_readable_here, is_readable_here
from cli.table import print_table
from cli.transactions import DataDirOption, admin_transaction, administration
from engine.pooling.purposes import Purpose, purpose_of
from jobs.accounts.money import PRICED_TOKENS, in_currency
from jobs.counted import counted
from jobs.errors import InputError
from jobs.lines.endpoints import LineKind, paths_of

if TYPE_CHECKING:
    from jobs.served_models import NewPrices
    from jobs.tables import Model

app = typer.Typer(help="Models that batches may use.", no_args_is_help=True)
app.command()(scale)

Day = typer.Option(formats=["%Y-%m-%d"], metavar="YYYY-MM-DD")
_AS_THE_OTHERS = "same"

InputPrice = Annotated[
    str | None, typer.Option(metavar="AMOUNT", help="Price of a million prompt tokens, such as 0.15.")
]
CachedInputPrice = Annotated[
    str | None, typer.Option(metavar="AMOUNT|same", help="Price of those in the prefix cache [default: same]")
]
OutputPrice = Annotated[str | None, typer.Option(metavar="AMOUNT", help="Price of a million generated tokens.")]
UrgentFactor = Annotated[str | None, typer.Option(metavar="FACTOR", help="Price factor of class urgent, such as 2.")]
BulkFactor = Annotated[str | None, typer.Option(metavar="FACTOR", help="Price factor of class bulk, such as 0.5.")]


@app.command()
def add(
    name: Annotated[str, typer.Argument(help="The name in requests.")],
    path: Annotated[
        str | None, typer.Argument(help="Folder or FILE.gguf on the workers, or Hugging Face id[@revision].")
    ] = None,
    *,
    base: Annotated[
        str | None, typer.Option(help="Of an adapter: the model whose workers run its lines.", metavar="NAME")
    ] = None,
    adapter: Annotated[
        str | None,
        typer.Option(help="Its folder, from / or ./ on, or its name at their servers.", metavar="DIR|SERVED_NAME"),
    ] = None,
    input_price: InputPrice = None,
    cached_input_price: CachedInputPrice = None,
    output_price: OutputPrice = None,
    urgent_factor: UrgentFactor = None,
    bulk_factor: BulkFactor = None,
    unchecked: Annotated[
        bool,
        typer.Option("--unchecked", help="Offer it before a worker has loaded it, even if its files are not here."),
    ] = False,
    data_dir: DataDirOption = None,
) -> None:
    """Add a model; then start a worker for it. Prices are in units of TOKENMILL_CURRENCY.

    Batches may use it at once if its files are readable on this machine, otherwise once a worker has loaded it. An
    adapter has no worker of its own: those of its base run its lines. Without prices it has its base's.
    """
    from features.administration import models

    prices = given_prices(input_price, cached_input_price, output_price, urgent=urgent_factor, bulk=bulk_factor)
    if base is not None and adapter is not None and path is None and not unchecked:
        with administration(data_dir) as admin:
            model = models.add_adapter(
                admin, name, base=base, adapter=adapter, is_readable=is_adapter_readable_here, **prices
            )
            is_offered = model.checked_at is not None
        print(f"added {name}" if is_offered else f"added {name}; batches may use it once a worker of {base} offers it")
        return
    if path is None or base is not None or adapter is not None:
        raise InputError(
            "give the model's path, or of an adapter --base and --adapter, without a path and --unchecked: it is "
            "offered as soon as a worker of its base offers it."
        )
    is_offered = is_readable_here(path) or unchecked
    with administration(data_dir) as admin:
        models.add(admin, name, path, is_checked=is_offered, serves=_kind_of(path), **prices)
    print(f"added {name}" if is_offered else f"added {name}; batches may use it once a worker has loaded it")


def _kind_of(path: str) -> LineKind:
    """Return the kind of lines that a model answers, from its files here; a worker that loads it corrects that."""
    kinds = {Purpose.EMBED: LineKind.POOL, Purpose.RERANK: LineKind.RERANK, None: LineKind.GENERATE}
    return kinds[purpose_of(Path(path).expanduser())]


@app.command("set")
def set_(
    name: Annotated[str, typer.Argument(help="The name in requests.")],
    *,
    input_price: InputPrice = None,
    cached_input_price: CachedInputPrice = None,
    output_price: OutputPrice = None,
    urgent_factor: UrgentFactor = None,
    bulk_factor: BulkFactor = None,
    data_dir: DataDirOption = None,
) -> None:
    """Set prices of a model, for work that starts from now on; past bills are not changed."""
    from features.administration import models

    prices = given_prices(input_price, cached_input_price, output_price, urgent=urgent_factor, bulk=bulk_factor)
    if not prices:
        raise InputError(
            "no price is given. Give --input-price, --output-price or another one; `models list` shows the prices."
        )
    with administration(data_dir) as admin:
        shown = dict(zip(_PRICE_HEADER, _shown_prices(models.set_prices(admin, name, **prices)), strict=True))
    print(
        f"{name}: input {shown['input']}, cached input {shown['cached input']}, output {shown['output']} "
        f"{_currency()} per million tokens; urgent × {shown['urgent ×']}, bulk × {shown['bulk ×']}"
    )


@app.command()
def reprice(
    name: Annotated[str, typer.Argument(help="The name in requests.")],
    *,
    input_price: InputPrice = None,
    cached_input_price: CachedInputPrice = None,
    output_price: OutputPrice = None,
    urgent_factor: UrgentFactor = None,
    bulk_factor: BulkFactor = None,
    since: Annotated[datetime | None, Day] = None,
    until: Annotated[datetime | None, Day] = None,
    tenant: Annotated[str | None, typer.Option(help="Name or id [default: all tenants]")] = None,
    data_dir: DataDirOption = None,
) -> None:
    """Show what past lines of a model would have cost at other prices, by tenant; no price or bill is changed.

    Prices that are not given are the model's current ones. By default the last 30 days (UTC).
    """
    from jobs import served_models
    from jobs.accounts import repricing, tenants
    from jobs.accounts.usage import period

    prices = given_prices(input_price, cached_input_price, output_price, urgent=urgent_factor, bulk=bulk_factor)
    days = period(since and since.date(), until and until.date())
    with admin_transaction(data_dir) as session:
        columns = served_models.prices_with(served_models.find_model(session, name), **prices)
        tenant_id = None if tenant is None else tenants.find_tenant(session, tenant).id
        repriced = repricing.reprice(session, name, columns, days, tenant_id=tenant_id)
    print_repriced(repriced, days, currency=_currency())


@app.command()
def pull(
    what: Annotated[str, typer.Argument(metavar="WHAT", help="org/name, org/name/FILE.gguf, its address, or smollm2.")],
    *,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit [default: main]")] = None,
    data_dir: DataDirOption = None,
) -> None:
    """Download a model to this machine and print its path; HF_TOKEN is sent to the hub if it is set.

    Models of the hub go to its cache (HF_HOME), where workers find them; no code is downloaded.
    """

    def say(sentence: str) -> None:
        print(sentence, file=sys.stderr, flush=True)

    if what == SMOLLM2:
        path = pull_smollm2((data_dir or default_data_dir()).expanduser().absolute() / "models", say=say)
        model = str(path)
    else:
        from cli.models.hub import parse_hub_model, pull_from_hub

        hub_model = parse_hub_model(what, revision)
        path = pull_from_hub(hub_model, say=say)
        model = hub_model.name if hub_model.file is None else str(path)
    print(path)
    say(f"serve it: tokenmill up --model {shlex.quote(model)}")


@app.command()
def remove(name: Annotated[str, typer.Argument(help="The name in requests.")], data_dir: DataDirOption = None) -> None:
    """Remove a model that no worker serves and no open batch uses; bills are kept."""
    from features.administration import models

    with administration(data_dir) as admin:
        models.remove(admin, name)
    print(f"removed {name}")


@app.command("list")
def list_(as_json: AsJson = False, data_dir: DataDirOption = None) -> None:
    """List models with their workers, how many they may have, endpoints and prices per million tokens.

    The prices are for class normal; the factors are for the other classes.
    """
    from jobs import served_models
    from jobs.chunks import fleet
    from jobs.scaling.limits import limits_by_model

    currency = _currency()
    with admin_transaction(data_dir) as session:
        workers = fleet.live_workers(session)
        live: Counter[tuple[str, str | None]] = Counter((worker.model, None) for worker in workers)
        live.update((worker.model, name) for worker in workers for name in worker.adapters)
        limits = limits_by_model(session)
        rows = [
            (
                model.name,
                model.path if model.base is None else f"{model.base} + {model.adapter}",
                _state(model, live[(model.base or model.name, model.adapter)]),
                *_shown_prices(model),
                currency,
                shown_range(limits.get(model.name)),
                " ".join(paths_of(LineKind(model.serves))),
            )
            for model in served_models.list_models(session)
        ]
    print_table(
        ("name", "path", "state", *_PRICE_HEADER, "currency", "scaling", "endpoints"),
        rows,
        numbers=_PRICE_HEADER,
        as_json=as_json,
    )


def _state(model: Model, num_workers: int) -> str:
    if num_workers:
        return counted(num_workers, "worker")
    return "not offered: no worker has loaded it" if model.checked_at is None else "no worker"


def given_prices(
    input_price: str | None,
    cached_input_price: str | None,
    output_price: str | None,
    *,
    urgent: str | None,
    bulk: str | None,
) -> NewPrices:
    """Return the exact prices of the options. Raises InputError."""
    options: dict[str, Any] = {
        "input_price_picos": price("--input-price", input_price),
        "output_price_picos": price("--output-price", output_price),
        "urgent_price_percent": factor("--urgent-factor", urgent),
        "bulk_price_percent": factor("--bulk-factor", bulk),
    }
    prices: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    if cached_input_price is not None:
        is_same = cached_input_price == _AS_THE_OTHERS
        prices["cached_input_price_picos"] = None if is_same else price("--cached-input-price", cached_input_price)
    return prices  # type: ignore[return-value]  # a dictionary with some of its keys


_PRICE_HEADER = ("input", "cached input", "output", "urgent ×", "bulk ×")


def _shown_prices(model: Model) -> tuple[str, ...]:

    cached = model.cached_input_price_picos
    picos = (
        model.input_price_picos,
        model.input_price_picos if cached is None else cached,
        model.output_price_picos,
    )
    percents = (model.urgent_price_percent, model.bulk_price_percent)
    return (*(in_currency(price * PRICED_TOKENS) for price in picos), *(f"{percent / 100:g}" for percent in percents))


def _currency() -> str:
    from jobs.settings import load_settings

    return load_settings().currency
