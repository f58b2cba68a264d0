"""Models that batches may name: add, change and remove them, and their prices and properties."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol, TypedDict, Unpack

from sqlalchemy import delete, func, select, text, update
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
"""A unit of currency per token."""
MAX_PERCENT = 10_000
_MOST_NAMED = 10  # models, in an error
_FEW = 3  # ids, in an error


class NewPrices(TypedDict, total=False):
    """Prices of a model to set, in pico-units of currency per token."""

    input_price_picos: int
    cached_input_price_picos: int | None
    """For prompt tokens found in the prefix cache; None: as the others."""
    output_price_picos: int
    urgent_price_percent: int
    """Price of class urgent, in per cent of these prices."""
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
    """Add a model under the name that batches use; prices that are not given are zero.

    A model that is not `is_checked` is offered once a worker has loaded it. Raises ConflictError where the name is
    taken.
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
    """Add a model, or point the existing one of this name at `path`; its prices stay.

    A new model that is not `is_checked` is offered once a worker has loaded it. An existing one stays offered, as
    batches may be waiting for it.
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


def require_path(session: Session, name: str, path: str) -> None:
    """Raise ConflictError where batches that have not ended wait for a model of this name with another path."""
    model = session.get(Model, name)
    if model is None or model.path == stored_path(path):
        return
    waiting = session.scalars(_OPEN_BATCHES.where(Batch.model == name)).all()
    if waiting:
        raise ConflictError(
            f"batches that have not ended wait for the model {name!r} from {model.path}, and {path} was given: "
            f"{_few(waiting)}. Let them end or cancel them while `tokenmill up --model {model.path} --served-name "
            f"{name}` runs, or choose another folder with --data-dir."
        )


def note_kind(session: Session, name: str, serves: LineKind) -> None:
    """Record which lines a model answers, as reported by a worker with its files.

    Raises NotFoundError, or ConflictError where it answered other lines so far and is still in use.
    """
    model = session.scalar(select(Model).where(Model.name == name).with_for_update())
    if model is None:
        raise _not_found(name, [other.name for other in list_models(session)])
    if model.base is not None:
        raise ConflictError(
            f"the model {name!r} is an adapter of {model.base!r}, whose workers run its lines. Start a worker for that "
            "model, or choose another name."
        )
    if model.serves != serves:
        workers = _computing(session, name)
        then = f"have it serve {' and '.join(paths_of(serves))}, or choose another name"
        _require_unused(session, name, workers, then=then)
        session.execute(update(Model).where((Model.name == name) | (Model.base == name)).values(serves=serves))


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEmbedding:
    """How a model computes its vectors: a query vector must be computed like those of the index."""

    model_sha256: str
    """Hash of all its files, including the tokenizer's."""
    tokenizer_sha256: str
    pooling: str
    dimensions: int
    max_tokens: int
    """Per text."""
    dtype: str = "float32"
    """In which it computes; also that of a worker of a release that knew no other."""


def note_embedding(session: Session, name: str, embedding: ModelEmbedding) -> None:
    """Record how a model computes its vectors, as reported by a worker with its files.

    Raises ConflictError while another worker computes them in another dtype: a batch would mix the two.
    """
    model = session.scalar(select(Model).where(Model.name == name).with_for_update())
    if model is not None and model.embedding is not None:
        _require_alone(session, name, embedding_of(model).dtype, embedding.dtype)
    session.execute(update(Model).where(Model.name == name).values(embedding=asdict(embedding)))


def embedding_of(model: Model) -> ModelEmbedding:
    """Return how a model computes its vectors. Raises ConflictError where no worker has reported it yet."""
    if model.embedding is None:
        raise ConflictError(
            f"No worker has reported yet how the model {model.name!r} makes its vectors; start one of this release "
            "(`tokenmill worker`), then ask again.",
            code="model_unknown",
        )
    return ModelEmbedding(**model.embedding)


def _require_alone(session: Session, name: str, dtype: str, asked: str) -> None:
    workers = _computing(session, name) if dtype != asked else []
    if workers:
        raise ConflictError(
            f"the model {name!r} is served in {dtype} by {_few(workers)}. Start this worker with --dtype {dtype}, or "
            f"stop what serves it, then start it with --dtype {asked}."
        )


class MadeVectors(Protocol):
    """How existing vectors were computed."""

    @property
    def model_sha256(self) -> str: ...
    @property
    def pooling(self) -> str: ...
    @property
    def dimensions(self) -> int: ...
    @property
    def computed_in(self) -> str: ...


def require_same(session: Session, name: str, vectors: MadeVectors) -> ModelEmbedding:
    """Return how a model computes its vectors. Raises ConflictError where existing ones were computed differently."""
    model = known_model(session, name)
    now = None if model is None or model.embedding is None else embedding_of(model)
    existing = (vectors.model_sha256, vectors.pooling, vectors.dimensions)
    if now is None or (now.model_sha256, now.pooling, now.dimensions) != existing:
        raise ConflictError(
            f"The model {name!r} is not the one that made the vectors of this index. Build the index again, or search "
            "it with mode=bm25.",
            code="model_changed",
        )
    if now.dtype != vectors.computed_in:
        raise ConflictError(
            f"The vectors of this index were computed in {vectors.computed_in}, and the model {name!r} now computes in "
            f"{now.dtype}. Start its workers with --dtype {vectors.computed_in}, build the index again, or search it "
            "with mode=bm25.",
            code="model_changed",
        )
    return now


def set_prices(session: Session, name: str, **prices: Unpack[NewPrices]) -> Model:
    """Set the given prices of a model, for chunks claimed from now on. Raises NotFoundError.

    Ledger entries stay as billed.
    """
    model = find_model(session, name)
    session.refresh(model, with_for_update=True)
    prices_with(model, **prices)
    for column, price in prices.items():
        setattr(model, column, price)
    model.has_own_prices = True
    session.flush()
    session.execute(update(Model).where(Model.base == name, ~Model.has_own_prices).values(**prices_of(model)))
    return model


def prices_of(model: Model) -> NewPrices:
    """Return all prices of a model."""
    return {column: getattr(model, column) for column in _FREE}  # type: ignore[return-value]  # its keys


def prices_with(model: Model, **prices: Unpack[NewPrices]) -> dict[str, int | None]:
    """Return a model's prices with the given ones replaced. Raises InputError where they do not fit together."""
    columns: dict[str, int | None] = {column: getattr(model, column) for column in _FREE}
    columns.update(prices)  # type: ignore[arg-type]  # mypy takes a TypedDict's values for objects
    _check_prices(Model(name=model.name, **columns))
    return columns


def remove_model(session: Session, name: str) -> None:
    """Remove a model with its prices. Raises NotFoundError, or ConflictError where it is still in use.

    Bills stay. A batch in validation detects it when it starts: see `hold_model`.
    """
    if session.scalar(select(Model.name).where(Model.name == name).with_for_update()) is None:
        raise _not_found(name, session.scalars(select(Model.name).order_by(Model.name).limit(_MOST_NAMED)).all())
    adapters = session.scalars(select(Model.name).where(Model.base == name).order_by(Model.name)).all()
    if adapters:
        raise ConflictError(f"the model {name!r} has the adapters {_few(adapters)}. Remove these first.")
    workers = [worker.id for worker in fleet.live_workers(session, model=name)]
    _require_unused(session, name, workers, then="remove it")
    session.execute(delete(Model).where(Model.name == name))


def _computing(session: Session, name: str) -> list[str]:
    """Return the workers that serve a model. One that only loads it, which may be the one that asks, does not yet."""
    return [worker.id for worker in fleet.live_workers(session, model=name) if worker.max_chunks]


def _require_unused(session: Session, name: str, workers: Sequence[str], *, then: str) -> None:
    """Raise ConflictError where one of `workers` serves a model, or a batch waits for it."""
    if workers:
        raise ConflictError(f"the model {name!r} is served by {_few(workers)}; stop what serves it, then {then}")
    open_batches = session.scalars(_OPEN_BATCHES.where((Batch.model == name) | (Batch.adapter == name))).all()
    if open_batches:
        raise ConflictError(
            f"batches that have not ended name the model {name!r}: {_few(open_batches)}. Cancel them or let them end, "
            f"then {then}."
        )


def hold_model(session: Session, name: str, kind: LineKind) -> bool:
    """Return whether a model still answers such lines, locked so until this transaction ends.

    The stand-in of document lines always does.
    """
    if name == PREPARE_MODEL:
        return True
    return session.scalar(_HOLD, {"name": name, "kind": kind}) is not None


_HOLD = text("SELECT name FROM model WHERE name = :name AND serves = :kind FOR KEY SHARE")


def list_models(session: Session) -> Sequence[Model]:
    """Return all models by name."""
    return session.scalars(select(Model).order_by(Model.name)).all()


def offered_models(session: Session) -> Sequence[Model]:
    """Return the models that a batch may name: checked by an operator, or loaded by a worker."""
    return [model for model in list_models(session) if model.checked_at is not None]


def names_for(session: Session, kind: LineKind) -> set[str]:
    """Return the model names that lines of a kind may use."""
    return names_of(kinds_by_name(session), kind)


def names_of(kinds: Mapping[str, LineKind], kind: LineKind) -> set[str]:
    """Return the same, from what `kinds_by_name` has read."""
    if kind is LineKind.PREPARE:
        return {PREPARE_MODEL}
    return {name for name, served in kinds.items() if served is kind}


def kinds_by_name(session: Session) -> dict[str, LineKind]:
    """Return the line kind of each offered model."""
    return kinds_of(offered_models(session))


def kinds_of(models: Iterable[Model]) -> dict[str, LineKind]:
    """Return the line kind of each model."""
    return {model.name: LineKind(model.serves) for model in models}


def find_offered(session: Session, name: str) -> Model:
    """Return an offered model. Raises NotFoundError (model_not_found) listing the offered ones."""
    offered = {model.name: model for model in offered_models(session)}
    if name not in offered:
        raise _not_found(name, list(offered))
    return offered[name]


def find_model(session: Session, name: str) -> Model:
    """Return a model, offered or not. Raises NotFoundError (model_not_found) listing the known ones."""
    model = session.get(Model, name)
    if model is None:
        raise _not_found(name, [other.name for other in list_models(session)])
    return model


def known_model(session: Session, name: str) -> Model | None:
    """Return a model, or None where it does not exist."""
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
    """Return the absolute path of a local folder or file, so that a worker started elsewhere finds it.

    A hub id, or a folder that exists only on other machines, is returned unchanged.
    """
    absolute = Path(path).expanduser()
    return str(absolute.absolute()) if absolute.exists() else path


def _check(name: str, path: str) -> None:
    if not name.strip() or name != name.strip():
        raise InputError(f"the model's name is {name!r}; give one without spaces around it", param="name")
    if name.startswith(PREPARE_MODEL[0]):
        raise InputError(f"the model's name is {name!r}; give one that does not begin with a colon", param="name")
    if not path.strip():
        raise InputError(f"the path of model {name!r} is empty; give a directory or a hub id", param="path")


def _check_prices(model: Model) -> None:
    """Raise InputError for prices out of range, and for cached tokens dearer than the price used to cover lines.

    A line is covered before it runs, when its cached tokens are unknown.
    """
    cached = model.cached_input_price_picos
    values = (model.input_price_picos, model.output_price_picos, *([] if cached is None else [cached]))
    if not all(0 <= price <= MAX_PRICE_PICOS for price in values):
        most = in_currency(MAX_PRICE_PICOS * PRICED_TOKENS)
        shown = ", ".join(in_currency(price * PRICED_TOKENS) for price in values)
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
