"""`/v1/admin/models`: the models that batches may name, their paths and their prices."""

from __future__ import annotations

from typing import Annotated, cast

from fastapi import APIRouter
from pydantic import Field

from api.fields import WHOLE, Storable, StrictModel
from api.openapi import failures
from features.administration import models
from features.administration.http.access import AdminDep
from features.administration.schemas import AdminModelList, AdminModelObject, DeletedModel
from jobs import served_models
from jobs.errors import InputError
from jobs.served_models import MAX_PERCENT, MAX_PRICE_PICOS, NewPrices

router = APIRouter(prefix="/v1/admin/models", tags=["admin"], responses=failures(401, 403, 503))

Price = Annotated[int, WHOLE, Field(ge=0, le=MAX_PRICE_PICOS)]
Percent = Annotated[int, WHOLE, Field(ge=0, le=MAX_PERCENT)]


class PricesBody(StrictModel):
    """Micro-units of currency for a million tokens; fields left out stay, or are free for a new model."""

    input_price_micros: Price = 0
    cached_input_price_micros: Price | None = None
    """Null for the price of uncached input."""
    output_price_micros: Price = 0
    urgent_price_percent: Percent = 100
    bulk_price_percent: Percent = 100

    def prices(self) -> NewPrices:
        """Return the given prices by column name: micro-units of a million tokens equal picos of one."""
        prices = {name: getattr(self, name) for name in self.model_fields_set & PricesBody.model_fields.keys()}
        return cast(NewPrices, {name.replace("_micros", "_picos"): value for name, value in prices.items()})


class AddModelBody(PricesBody):
    name: Annotated[Storable, Field(min_length=1, max_length=200)]
    path: Annotated[Storable, Field(min_length=1, max_length=1000)] | None = None
    """Folder or file on the workers, or an id of the hub; not for an adapter."""
    base: Annotated[Storable, Field(min_length=1, max_length=200)] | None = None
    """Of an adapter, the model whose workers run its lines."""
    adapter: Annotated[Storable, Field(min_length=1, max_length=1000)] | None = None
    """Its name at their servers, or its folder on the workers, from `/` on."""
    is_offered: bool = False
    """Whether batches may name it before a worker has loaded it."""


@router.get("", operation_id="listKnownModels")
def list_all(admin: AdminDep) -> AdminModelList:
    """Return all models, including those that batches may not name yet."""
    return AdminModelList(data=[AdminModelObject.of(model) for model in served_models.list_models(admin.session)])


@router.post("", operation_id="addModel", responses=failures(404, 408, 409, 413))
def add(body: AddModelBody, admin: AdminDep) -> AdminModelObject:
    """Register a model; then start a worker for it, which records what kind of lines it answers.

    An adapter has `base` and `adapter` in place of `path`, and is offered once a worker's server lists it, or a worker
    of ours can read its folder.
    """
    if body.adapter is not None and body.adapter.startswith((".", "~")):
        message = f"The adapter is {body.adapter!r}; give the path of its folder on the workers, from / on."
        raise InputError(message, param="adapter", code="invalid_value")
    if body.base is not None and body.adapter is not None and body.path is None and not body.is_offered:
        adapter = models.add_adapter(admin, body.name, base=body.base, adapter=body.adapter, **body.prices())
        return AdminModelObject.of(adapter)
    if body.path is None or body.base is not None or body.adapter is not None:
        message = "Give the path of a model, or base and adapter of an adapter, which its server offers."
        raise InputError(message, param="path", code="invalid_value")
    return AdminModelObject.of(models.add(admin, body.name, body.path, is_checked=body.is_offered, **body.prices()))


@router.patch("/{name:path}", operation_id="setPrices", responses=failures(404, 408, 413))
def set_prices(name: str, body: PricesBody, admin: AdminDep) -> AdminModelObject:
    """Set prices; work that starts later is billed with them, past bills stay."""
    prices = body.prices()
    if not prices:
        raise InputError(f"There is no price. Give one of {', '.join(PricesBody.model_fields)}.")
    return AdminModelObject.of(models.set_prices(admin, name, **prices))


@router.delete("/{name:path}", operation_id="removeModel", responses=failures(404, 409))
def remove(name: str, admin: AdminDep) -> DeletedModel:
    """Remove a model that no worker serves and no open batch names; bills stay."""
    models.remove(admin, name)
    return DeletedModel(name=name)
