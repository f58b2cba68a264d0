"""The models that batches may name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from jobs.errors import ConflictError, InputError, NotFoundError
from jobs.tables import Model

MAX_PRICE_MICROS = 10**12
"""A unit of currency for each token."""


def add_model(
    session: Session, name: str, path: str, *, input_price_micros: int = 0, output_price_micros: int = 0
) -> Model:
    """Add a model under the name that batches use; prices are micro-units of currency per million tokens.

    Raises ConflictError where the name is taken.
    """
    _check(name, path)
    _check_prices(name, (input_price_micros, output_price_micros))
    row = insert(Model).values(
        name=name,
        path=stored_path(path),
        input_price_micros=input_price_micros,
        output_price_micros=output_price_micros,
    )
    model: Model | None = session.scalar(row.on_conflict_do_nothing().returning(Model))
    if model is None:
        raise ConflictError(
            f"a model named {name!r} exists already; choose another name, or set its prices with "
            f"`tokenmill models price {name}`",
            param="name",
        )
    return model


def put_model(session: Session, name: str, path: str) -> Model:
    """Add a model, or point the one of this name at `path`; its prices stay."""
    _check(name, path)
    stored = stored_path(path)
    row = insert(Model).values(name=name, path=stored)
    model = session.scalar(
        row.on_conflict_do_update(index_elements=[Model.name], set_={"path": stored}).returning(Model),
        execution_options={"populate_existing": True},
    )
    assert isinstance(model, Model)
    return model


def set_prices(
    session: Session, name: str, *, input_price_micros: int | None = None, output_price_micros: int | None = None
) -> Model:
    """Set prices of a model, for chunks claimed from now on; None leaves one as it is. Raises NotFoundError.

    What is in the ledger stays as it was billed.
    """
    given = {"input_price_micros": input_price_micros, "output_price_micros": output_price_micros}
    prices = {column: price for column, price in given.items() if price is not None}
    _check_prices(name, tuple(prices.values()))
    model = find_model(session, name)
    for column, price in prices.items():
        setattr(model, column, price)
    session.flush()
    return model


def list_models(session: Session) -> Sequence[Model]:
    """Return all models by name."""
    return session.scalars(select(Model).order_by(Model.name)).all()


def find_model(session: Session, name: str) -> Model:
    """Return a model. Raises NotFoundError (model_not_found) that names the models there are."""
    model = session.get(Model, name)
    if model is None:
        known = ", ".join(session.scalars(select(Model.name).order_by(Model.name).limit(10))) or "none yet"
        raise NotFoundError(
            f"The model {name!r} does not exist; known are: {known}.", param="model", code="model_not_found"
        )
    return model


def stored_path(path: str) -> str:
    """Return the absolute path of a folder or file of this machine, so that a worker started elsewhere finds it.

    A hub id, or a folder that only other machines have, stays as it is.
    """
    found = Path(path).expanduser()
    return str(found.absolute()) if found.exists() else path


def _check(name: str, path: str) -> None:
    if not name.strip() or name != name.strip():
        raise InputError(f"the model's name is {name!r}; give one without spaces around it", param="name")
    if not path.strip():
        raise InputError(f"the path of model {name!r} is empty; give a directory or a hub id", param="path")


def _check_prices(name: str, prices: Sequence[int]) -> None:
    if not all(0 <= price <= MAX_PRICE_MICROS for price in prices):
        raise InputError(f"the prices of model {name!r} are {prices}; give 0 to {MAX_PRICE_MICROS}", param="prices")
