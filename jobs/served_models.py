"""The models that batches may name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol, TypedDict, Unpack

from sqlalchemy import delete, func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from jobs.accounts.money import PRICED_TOKENS, in_currency
from jobs.chunks import fleet
from jobs.errors import ConflictError, InputError, NotFoundError
from jobs.lines.document_bodies import PREPARE_MODEL
from jobs.lines.endpoints import LineKind, paths_of
from jobs.states import LIVE_BATCH_STATES
from jobs.tables import Batch, Model

MAX_PRICE_PICOS = 10**12
"""A unit of currency for each token."""
MAX_PERCENT = 10_000
_MOST_NAMED = 10  # models, in an error
_FEW = 3  # ids, in an error


class NewPrices(TypedDict, total=False):
    """Prices of a model that are given; pico-units of currency per token."""

    input_price_picos: int
    cached_input_price_picos: int | None
    """Of prompt tokens that the prefix cache had; None: as the others."""
    output_price_picos: int
    urgent_price_percent: int
    """What class urgent pays, in per cent of these prices."""
    bulk_price_percent: int


_FREE: NewPrices = {
    "input_price_picos": 0,
    "cached_input_price_picos": None,
    "output_price_picos": 0,
    "urgent_price_percent": 100,
    "bulk_price_percent": 100,
}


def add_model(
    session: Session,
    name: str,
    path: str,
    *,
    is_checked: bool = True,
    serves: LineKind = LineKind.GENERATE,
    **prices: Unpack[NewPrices],
) -> Model:
    """Add a model under the name that batches use; what no price is given for is free.

    One that nobody `is_checked` is offered once a worker has loaded it. Raises ConflictError where the name is taken.
    """
    _check(name, path)
    columns: NewPrices = {**_FREE, **prices}
    _check_prices(Model(name=name, **columns))
    checked_at = func.now() if is_checked else None
    row = insert(Model).values(name=name, path=stored_path(path), checked_at=checked_at, serves=serves, **columns)
    model: Model | None = session.scalar(row.on_conflict_do_nothing().returning(Model))
    if model is None:
        raise ConflictError(
            f"a model named {name!r} exists already; choose another name, or set its prices with "
            f"`tokenmill models set {name}`",
            param="name",
        )
    return model


def put_model(session: Session, name: str, path: str, *, is_checked: bool = False) -> Model:
    """Add a model, or point the one of this name at `path`; its prices stay.

    A new one that nobody `is_checked` is offered once a worker has loaded it. For one that was there batches may be
    waiting, so it stays offered.
    """
    _check(name, path)
    stored = stored_path(path)
    row = insert(Model).values(name=name, path=stored, checked_at=func.now() if is_checked else None)
    changes = {"path": stored, "checked_at": func.coalesce(Model.checked_at, row.excluded.checked_at)}
    model = session.scalar(
        row.on_conflict_do_update(index_elements=[Model.name], set_=changes).returning(Model),
        execution_options={"populate_existing": True},
    )
    assert isinstance(model, Model)
    return model


def note_kind(session: Session, name: str, serves: LineKind) -> None:
    """Note which lines a model answers, as the worker found that has its files.

    Raises NotFoundError, or ConflictError where it answered others so far and somebody still needs it.
    """
    before = session.scalar(select(Model.serves).where(Model.name == name).with_for_update())
    if before is None:
        raise _not_found(name, [other.name for other in list_models(session)])
    if before != serves:
        _require_unused(session, name, then=f"have it serve {' and '.join(paths_of(serves))}, or choose another name")
        session.execute(update(Model).where(Model.name == name).values(serves=serves))


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEmbedding:
    """How a model makes its vectors: what is searched with one must have been made so."""

    model_sha256: str
    """Of all its files, the tokenizer's among them."""
    tokenizer_sha256: str
    pooling: str
    dimensions: int
    max_tokens: int
    """Of a text."""


def note_embedding(session: Session, name: str, made: ModelEmbedding) -> None:
    """Note how a model makes its vectors, as the worker found that has its files."""
    session.execute(update(Model).where(Model.name == name).values(embedding=asdict(made)))


def embedding_of(model: Model) -> ModelEmbedding:
    """Return how a model makes its vectors. Raises ConflictError where no worker has said it yet."""
    if model.embedding is None:
        raise ConflictError(
            f"No worker has said yet how the model {model.name!r} makes its vectors; start one of this release "
            "(`tokenmill worker`), then ask again.",
            code="model_unknown",
        )
    return ModelEmbedding(**model.embedding)


class MadeVectors(Protocol):
    """How vectors were made once."""

    @property
    def model_sha256(self) -> str: ...
    @property
    def pooling(self) -> str: ...
    @property
    def dimensions(self) -> int: ...


def require_same(session: Session, name: str, made: MadeVectors) -> ModelEmbedding:
    """Return how a model makes its vectors. Raises ConflictError unless they were made so once."""
    model = known_model(session, name)
    now = None if model is None or model.embedding is None else embedding_of(model)
    wanted = (made.model_sha256, made.pooling, made.dimensions)
    if now is None or (now.model_sha256, now.pooling, now.dimensions) != wanted:
        raise ConflictError(
            f"The model {name!r} is another one than made the vectors of this index. Build the index anew, or search "
            "it with mode=bm25.",
            code="model_changed",
        )
    return now


def set_prices(session: Session, name: str, **prices: Unpack[NewPrices]) -> Model:
    """Set those prices of a model that are given, for chunks claimed from now on. Raises NotFoundError.

    What is in the ledger stays as it was billed.
    """
    model = find_model(session, name)
    session.refresh(model, with_for_update=True)
    prices_with(model, **prices)
    for column, price in prices.items():
        setattr(model, column, price)
    session.flush()
    return model


def prices_with(model: Model, **prices: Unpack[NewPrices]) -> dict[str, int | None]:
    """Return the prices that a model would have with those that are given. Raises InputError where they do not fit."""
    columns: dict[str, int | None] = {column: getattr(model, column) for column in _FREE}
    columns.update(prices)  # type: ignore[arg-type]  # mypy takes a TypedDict's values for objects
    _check_prices(Model(name=model.name, **columns))
    return columns


def remove_model(session: Session, name: str) -> None:
    """Take a model away, with its prices. Raises NotFoundError, or ConflictError where somebody still needs it.

    What was billed stays. A batch that is being validated meanwhile finds out when it starts: see `hold_model`.
    """
    if session.scalar(select(Model.name).where(Model.name == name).with_for_update()) is None:
        raise _not_found(name, session.scalars(select(Model.name).order_by(Model.name).limit(_MOST_NAMED)).all())
    _require_unused(session, name, then="remove it")
    session.execute(delete(Model).where(Model.name == name))


def _require_unused(session: Session, name: str, *, then: str) -> None:
    """Raise ConflictError where a worker serves a model, or a batch waits for it."""
    workers = [worker.id for worker in fleet.live_workers(session, model=name)]
    if workers:
        raise ConflictError(f"the model {name!r} is served by {_few(workers)}; stop what serves it, then {then}")
    open_batches = session.scalars(_OPEN_BATCHES.where(Batch.model == name)).all()
    if open_batches:
        raise ConflictError(
            f"batches that have not ended name the model {name!r}: {_few(open_batches)}. Cancel them or let them end, "
            f"then {then}."
        )


def hold_model(session: Session, name: str, kind: LineKind) -> bool:
    """Tell whether a model still answers such lines, and keep that so until this transaction ends.

    What stands for none in lines that are prepared always does.
    """
    if name == PREPARE_MODEL:
        return True
    answers = (Model.name == name) & (Model.serves == kind)
    held = select(Model.name).where(answers).with_for_update(read=True, key_share=True)
    return session.scalar(held) is not None


def list_models(session: Session) -> Sequence[Model]:
    """Return all models by name."""
    return session.scalars(select(Model).order_by(Model.name)).all()


def offered_models(session: Session) -> Sequence[Model]:
    """Return the models that a batch may name: an operator has checked them, or a worker has loaded them."""
    return [model for model in list_models(session) if model.checked_at is not None]


def names_for(session: Session, kind: LineKind) -> set[str]:
    """Return what lines of a kind may name as their model."""
    if kind is LineKind.PREPARE:
        return {PREPARE_MODEL}
    return {model.name for model in offered_models(session) if model.serves == kind}


def kinds_by_name(session: Session) -> dict[str, LineKind]:
    """Return what each model that is offered answers."""
    return {model.name: LineKind(model.serves) for model in offered_models(session)}


def find_offered(session: Session, name: str) -> Model:
    """Return a model that a batch may name. Raises NotFoundError (model_not_found) that names those there are."""
    offered = {model.name: model for model in offered_models(session)}
    if name not in offered:
        raise _not_found(name, list(offered))
    return offered[name]


def find_model(session: Session, name: str) -> Model:
    """Return a model, be it offered or not. Raises NotFoundError (model_not_found) that names the models there are."""
    model = session.get(Model, name)
    if model is None:
        raise _not_found(name, [other.name for other in list_models(session)])
    return model


def known_model(session: Session, name: str) -> Model | None:
    """Return a model, None where it is not known any more."""
    return session.get(Model, name)


def _not_found(name: str, known: Sequence[str]) -> NotFoundError:
    names = ", ".join(known[:_MOST_NAMED]) or "none yet"
    return NotFoundError(
        f"The model {name!r} does not exist; known are: {names}.", param="model", code="model_not_found"
    )


def _few(ids: Sequence[str]) -> str:
    more = f" and {len(ids) - _FEW:,} more" if len(ids) > _FEW else ""
    return ", ".join(ids[:_FEW]) + more


def stored_path(path: str) -> str:
    """Return the absolute path of a folder or file of this machine, so that a worker started elsewhere finds it.

    A hub id, or a folder that only other machines have, stays as it is.
    """
    found = Path(path).expanduser()
    return str(found.absolute()) if found.exists() else path


def _check(name: str, path: str) -> None:
    if not name.strip() or name != name.strip():
        raise InputError(f"the model's name is {name!r}; give one without spaces around it", param="name")
    if name.startswith(PREPARE_MODEL[0]):
        raise InputError(f"the model's name is {name!r}; give one that begins with no colon", param="name")
    if not path.strip():
        raise InputError(f"the path of model {name!r} is empty; give a directory or a hub id", param="path")


def _check_prices(model: Model) -> None:
    """Raise InputError for prices out of range, and for cached tokens that cost more than what lines are covered with.

    A line is covered before it runs, when nobody knows what the cache has of it.
    """
    cached = model.cached_input_price_picos
    given = (model.input_price_picos, model.output_price_picos, *([] if cached is None else [cached]))
    if not all(0 <= price <= MAX_PRICE_PICOS for price in given):
        most = in_currency(MAX_PRICE_PICOS * PRICED_TOKENS)
        shown = ", ".join(in_currency(price * PRICED_TOKENS) for price in given)
        message = f"the prices of model {model.name!r} are {shown} per million tokens; give 0 to {most}"
        raise InputError(message, param="prices")
    if cached is not None and cached > model.input_price_picos:
        raise InputError(
            f"cached prompt tokens of model {model.name!r} cost {in_currency(cached * PRICED_TOKENS)} per million and "
            f"the others {in_currency(model.input_price_picos * PRICED_TOKENS)}; give them at most the price of these",
            param="cached_input_price",
        )
    if not all(0 <= percent <= MAX_PERCENT for percent in (model.urgent_price_percent, model.bulk_price_percent)):
        raise InputError(f"a class of model {model.name!r} may cost 0 to {MAX_PERCENT} per cent", param="prices")


_OPEN_BATCHES = select(Batch.id).where(Batch.state.in_(LIVE_BATCH_STATES))
