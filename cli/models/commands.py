"""`tokenmill models …`: the models that batches may name, and what they cost. They talk to Postgres directly."""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.data_dir import default_data_dir
from cli.models.pulling import SMOLLM2, pull_smollm2
from cli.models.repriced import print_repriced
from cli.served_model import is_readable_here
from cli.table import print_table
from cli.transactions import DataDirOption, admin_transaction, administration
from engine.pooling.purposes import Purpose, purpose_of
from jobs.accounts.money import PRICED_TOKENS, from_currency, in_currency
from jobs.counted import counted
from jobs.errors import InputError
from jobs.lines.endpoints import LineKind, paths_of

if TYPE_CHECKING:
    from jobs.served_models import NewPrices
    from jobs.tables import Model

app = typer.Typer(help="Models that batches may use.", no_args_is_help=True)

Day = typer.Option(formats=["%Y-%m-%d"], metavar="YYYY-MM-DD")
_PRICE_DIGITS = 6  # micro-units
_FACTOR_DIGITS = 2  # per cent
_AS_THE_OTHERS = "same"

InputPrice = Annotated[str | None, typer.Option(metavar="AMOUNT", help="Of a million prompt tokens, such as 0.15.")]
CachedInputPrice = Annotated[
    str | None, typer.Option(metavar="AMOUNT|same", help="Of those that the prefix cache had [default: same]")
]
OutputPrice = Annotated[str | None, typer.Option(metavar="AMOUNT", help="Of a million generated tokens.")]
UrgentFactor = Annotated[str | None, typer.Option(metavar="FACTOR", help="Class urgent costs so many times as much.")]
BulkFactor = Annotated[str | None, typer.Option(metavar="FACTOR", help="The same for class bulk, such as 0.5.")]


@app.command()
def add(
    name: Annotated[str, typer.Argument(help="The name requests use.")],
    path: Annotated[str, typer.Argument(help="Folder or FILE.gguf on the workers, or Hugging Face id[@revision].")],
    *,
    input_price: InputPrice = None,
    cached_input_price: CachedInputPrice = None,
    output_price: OutputPrice = None,
    urgent_factor: UrgentFactor = None,
    bulk_factor: BulkFactor = None,
    unchecked: Annotated[
        bool, typer.Option("--unchecked", help="Offer it before a worker has loaded it, though it is not here.")
    ] = False,
    data_dir: DataDirOption = None,
) -> None:
    """Make a model known; then start a worker for it. Prices are in units of TOKENMILL_CURRENCY.

    Batches may name it at once where its files are on this machine and can be read, else once a worker has loaded it.
    """
    from features.administration import models

    is_offered = is_readable_here(path) or unchecked
    prices = given_prices(input_price, cached_input_price, output_price, urgent=urgent_factor, bulk=bulk_factor)
    with administration(data_dir) as admin:
        models.add(admin, name, path, is_checked=is_offered, serves=_kind_of(path), **prices)
    print(f"added {name}" if is_offered else f"added {name}; batches may name it once a worker has loaded it")


def _kind_of(path: str) -> LineKind:
    """Return what a model answers, as far as its files say it here; a worker that loads it knows better."""
    kinds = {Purpose.EMBED: LineKind.POOL, Purpose.RERANK: LineKind.RERANK, None: LineKind.GENERATE}
    return kinds[purpose_of(Path(path).expanduser())]


@app.command("set")
def set_(
    name: Annotated[str, typer.Argument(help="The name requests use.")],
    *,
    input_price: InputPrice = None,
    cached_input_price: CachedInputPrice = None,
    output_price: OutputPrice = None,
    urgent_factor: UrgentFactor = None,
    bulk_factor: BulkFactor = None,
    data_dir: DataDirOption = None,
) -> None:
    """Set prices of a model; work that is taken up later is billed with them, past bills stay."""
    from features.administration import models

    prices = given_prices(input_price, cached_input_price, output_price, urgent=urgent_factor, bulk=bulk_factor)
    if not prices:
        raise InputError(
            "no price is given. Give --input-price, --output-price or another one; `models list` shows them."
        )
    with administration(data_dir) as admin:
        shown = dict(zip(_PRICE_HEADER, _shown_prices(models.set_prices(admin, name, **prices)), strict=True))
    print(
        f"{name}: input {shown['input']}, cached input {shown['cached input']}, output {shown['output']} "
        f"{_currency()} per million tokens; urgent × {shown['urgent ×']}, bulk × {shown['bulk ×']}"
    )


@app.command()
def reprice(
    name: Annotated[str, typer.Argument(help="The name requests use.")],
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
    """Show what past lines of a model would have cost at other prices, by tenant; changes no price and no bill.

    What is not given is as the model has it now. The last 30 days of UTC unless told otherwise.
    """
    from jobs import served_models
    from jobs.accounts import repricing, tenants
    from jobs.accounts.usage import period

    prices = given_prices(input_price, cached_input_price, output_price, urgent=urgent_factor, bulk=bulk_factor)
    asked = period(since and since.date(), until and until.date())
    with admin_transaction(data_dir) as session:
        columns = served_models.prices_with(served_models.find_model(session, name), **prices)
        tenant_id = None if tenant is None else tenants.find_tenant(session, tenant).id
        found = repricing.reprice(session, name, columns, asked, tenant_id=tenant_id)
    print_repriced(found, asked, currency=_currency())


@app.command()
def pull(
    what: Annotated[str, typer.Argument(metavar="WHAT", help="org/name, org/name/FILE.gguf, its address, or smollm2.")],
    *,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit [default: main]")] = None,
    data_dir: DataDirOption = None,
) -> None:
    """Fetch a model to this machine and print where it is; HF_TOKEN is sent to the hub where it is set.

    Models of the hub go to its cache (HF_HOME), where workers look for them; no code is fetched with them.
    """

    def say(sentence: str) -> None:
        print(sentence, file=sys.stderr, flush=True)

    if what == SMOLLM2:
        path = pull_smollm2((data_dir or default_data_dir()).expanduser().absolute() / "models", say=say)
        model = str(path)
    else:
        from cli.models.hub import parse_hub_model, pull_from_hub

        wanted = parse_hub_model(what, revision)
        path = pull_from_hub(wanted, say=say)
        model = wanted.name if wanted.file is None else str(path)
    print(path)
    say(f"serve it: tokenmill up --model {shlex.quote(model)}")


@app.command()
def remove(name: Annotated[str, typer.Argument(help="The name requests use.")], data_dir: DataDirOption = None) -> None:
    """Take a model away, once no worker serves it and no open batch names it; bills stay."""
    from features.administration import models

    with administration(data_dir) as admin:
        models.remove(admin, name)
    print(f"removed {name}")


@app.command("list")
def list_(data_dir: DataDirOption = None) -> None:
    """List models, who serves them, what lines they answer, and their prices for a million tokens.

    The prices are those of class normal; the factors are those of the other classes.
    """
    from jobs import served_models
    from jobs.chunks import fleet

    currency = _currency()
    with admin_transaction(data_dir) as session:
        live = Counter(worker.model for worker in fleet.live_workers(session))
        rows = [
            (
                model.name,
                model.path,
                _state(model, live[model.name]),
                *_shown_prices(model),
                currency,
                " ".join(paths_of(LineKind(model.serves))),
            )
            for model in served_models.list_models(session)
        ]
    print_table(("name", "path", "state", *_PRICE_HEADER, "currency", "endpoints"), rows, numbers=_PRICE_HEADER)


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
    """Return the prices that options give, exactly. Raises InputError."""
    found: dict[str, Any] = {
        "input_price_picos": _price("--input-price", input_price),
        "output_price_picos": _price("--output-price", output_price),
        "urgent_price_percent": _factor("--urgent-factor", urgent),
        "bulk_price_percent": _factor("--bulk-factor", bulk),
    }
    prices: dict[str, Any] = {name: value for name, value in found.items() if value is not None}
    if cached_input_price is not None:
        is_same = cached_input_price == _AS_THE_OTHERS
        prices["cached_input_price_picos"] = None if is_same else _price("--cached-input-price", cached_input_price)
    return prices  # type: ignore[return-value]  # a dictionary of some of its keys


def _price(option: str, given: str | None) -> int | None:
    return _amount(option, given, digits=_PRICE_DIGITS, meaning="for a million tokens, such as 0.15")


def _factor(option: str, given: str | None) -> int | None:
    return _amount(option, given, digits=_FACTOR_DIGITS, meaning="such as 2 or 0.5")


def _amount(option: str, given: str | None, *, digits: int, meaning: str) -> int | None:

    if given is None:
        return None
    try:
        return from_currency(given, digits=digits)
    except ValueError:
        raise InputError(
            f"{option} is {given[:40]!r}; give a number {meaning}, with at most {digits} digits behind the point"
        ) from None


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
