"""`/v1/models`: a model with its prices, and the list of all."""

from __future__ import annotations

from typing import Literal, Self

from api.schemas.wire import WholeList, WireModel, unix_seconds
from jobs.accounts.money import PRICED_TOKENS, in_currency
from jobs.accounts.prices import Prices
from jobs.lines.endpoints import LineKind, paths_of
from jobs.states import Priority
from jobs.tables import Model


class PricesObject(WireModel):
    """Prices of a million tokens: exact, in units of the currency."""

    input: str
    """For prompt tokens."""
    cached_input: str
    """For prompt tokens from the prefix cache."""
    output: str

    @classmethod
    def of(cls, prices: Prices) -> Self:
        cached = prices.input_picos if prices.cached_input_picos is None else prices.cached_input_picos
        return cls(
            input=in_currency(prices.input_picos * PRICED_TOKENS),
            cached_input=in_currency(cached * PRICED_TOKENS),
            output=in_currency(prices.output_picos * PRICED_TOKENS),
        )


class ModelObject(WireModel):
    id: str
    """The name that the lines of a batch give as their `model`; it may contain slashes."""
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["tokenmill"] = "tokenmill"
    input_price_micros: int
    """Micro-units of currency per million prompt tokens."""
    output_price_micros: int
    """Micro-units of currency per million generated tokens."""
    currency: str
    max_model_len: int | None = None
    """The longest context (prompt and answer) among the workers that serve it now; null if none does."""
    parent: str | None = None
    """Of an adapter, the model that it changes."""
    endpoints: list[str]
    """The endpoints that a batch for this model may have."""
    prices: dict[Priority, PricesObject]
    """By the class in which a line runs."""

    @classmethod
    def of(cls, model: Model, *, currency: str, max_model_len: int | None = None) -> Self:
        return cls(
            id=model.name,
            created=unix_seconds(model.created_at),
            input_price_micros=model.input_price_picos,
            output_price_micros=model.output_price_picos,
            currency=currency,
            max_model_len=max_model_len,
            parent=model.base,
            endpoints=list(paths_of(LineKind(model.serves))),
            prices={priority: PricesObject.of(Prices.of(model, priority)) for priority in Priority},
        )


class ModelList(WholeList[ModelObject]):
    """All models, without pages."""
