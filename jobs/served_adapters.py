"""Adapters: models of their own name and price whose lines run at the workers of another model, their base.

The queue of a base holds the lines of all its adapters, so that its workers share one order and one speed; a worker
claims those whose adapters its server lists or, where our engine runs them, whose folders it can read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Unpack

from sqlalchemy import func, select, text, update
from sqlalchemy.orm import Session

from jobs import served_models
from jobs.chunks import fleet
from jobs.engines.out import CLAIMS
from jobs.errors import InputError, NotFoundError
from jobs.lines.endpoints import LineKind
from jobs.served_models import NewPrices
from jobs.tables import Model

_MOST_NAMED = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """An adapter that batches may name."""

    base: str
    """The model whose workers run its lines."""
    server_model: str
    """Its name at their servers, or its folder."""


def add_adapter(
    session: Session,
    name: str,
    *,
    base: str,
    adapter: str,
    is_readable: Callable[[str, str], bool] = lambda base_path, folder: False,
    **prices: Unpack[NewPrices],
) -> Model:
    """Add an adapter under the name that batches use; without prices it has those of its base, whatever they become.

    It is offered once a worker's server lists it, or a worker of our engine can read its folder, which begins with
    `/`, `.` or `~`; at once if `is_readable`, given the base's path and the folder, tells so. Raises InputError,
    NotFoundError for an unknown base, and ConflictError where the name is taken.
    """
    of = _base_model(session, base)
    _check_adapter(adapter)
    if is_folder(adapter):
        _check_base(of)
        adapter = str(Path(adapter).expanduser().absolute())
        is_listed = is_readable(of.path, adapter)
    else:
        is_listed = _is_listed(session, base, adapter)
    own = prices or served_models.prices_of(of)
    kind = LineKind(of.serves)
    model = served_models.add_model(session, name, of.path, is_checked=is_listed, serves=kind, **own)
    model.base, model.adapter, model.has_own_prices = base, adapter, bool(prices)
    session.flush()
    return model


def among(models: Iterable[Model]) -> Mapping[str, Adapter]:
    """Return the adapters among models, by name."""
    return {
        model.name: Adapter(base=model.base, server_model=model.adapter)
        for model in models
        if model.base is not None and model.adapter is not None
    }


def is_folder(adapter: str) -> bool:
    """Return whether an adapter is given by its folder, for our own engine, and not by its name at a server."""
    return adapter.startswith(("/", ".", "~"))


def folders_of(session: Session, base: str) -> Sequence[str]:
    """Return the folders of a model's adapters."""
    query = select(Model.adapter).where(Model.base == base, Model.adapter.startswith("/")).distinct()
    return [folder for folder in session.scalars(query.order_by(Model.adapter)) if folder is not None]


def note_listed(session: Session, base: str, listed: Collection[str]) -> None:
    """Offer the adapters of a model that a server lists, or whose folders a worker can read."""
    unchecked = update(Model).where(Model.base == base, Model.checked_at.is_(None), Model.adapter.in_(listed))
    session.execute(unchecked.values(checked_at=func.clock_timestamp()))


def _base_model(session: Session, base: str) -> Model:
    try:
        model = served_models.find_model(session, base)
    except NotFoundError as error:
        raise NotFoundError(f"--base: {error.message}", param="base", code="model_not_found") from None
    if model.base is not None:
        raise InputError(
            f"the model {base!r} is itself an adapter, of {model.base!r}; give that one as the base",
            param="base",
            code="base_is_adapter",
        )
    return model


def _check_adapter(adapter: str) -> None:
    if not adapter.strip() or adapter != adapter.strip():
        raise InputError(f"the adapter is {adapter!r}; give its name at the server", param="adapter", code="no_name")
    if not is_folder(adapter) and Path(adapter).is_dir():
        raise InputError(
            f"the adapter {adapter!r} is a name at a server, and a folder here. For the folder, which our own engine "
            f"runs, write ./{adapter}.",
            param="adapter",
            code="adapter_is_path",
        )


def _check_base(base: Model) -> None:
    if base.serves != LineKind.GENERATE:
        raise InputError(
            f"the model {base.name!r} generates nothing; our own engine runs adapters of models that do. Merge the "
            "adapter into the model, and add that.",
            param="base",
            code="base_generates_nothing",
        )


def _is_listed(session: Session, base: str, adapter: str) -> bool:
    """Return whether a server of a worker that claims chunks lists an adapter; False where there is no such worker.

    Raises InputError where there are some, and none of their servers lists it.
    """
    rows = session.scalars(_LISTED, {"model": base, "within": fleet.LIVE_WITHIN}).all()
    if not rows:
        return False  # no server runs now
    names = sorted({name for row in rows for name in row})
    if adapter in names:
        return True
    offered = ", ".join(names[:_MOST_NAMED]) or "none"
    raise InputError(
        f"no server of the model {base!r} lists {adapter!r}; besides their models they list {offered}. Give one of "
        "these, or load the adapter there first: workers read the list every minute.",
        param="adapter",
        code="adapter_not_listed",
    )


# A worker that is out does not know what its server lists now; one that is drained claims nothing of it.
_LISTED = text(f"""
    SELECT adapters FROM worker
    WHERE model = :model AND stopped_at IS NULL AND engine <> 'tokenmill' AND {CLAIMS}
        AND heartbeat_at > now() - CAST(:within AS interval)
""")
