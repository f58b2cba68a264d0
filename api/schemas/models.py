"""`/v1/models`: a model with its prices, and the list of all."""

from __future__ import annotations

from typing import Literal, Self

from api.schemas.wire import WireModel, unix_seconds
from jobs.tables import Model


class ModelObject(WireModel):
    id: str
    """The name that the lines of a batch give as their `model`; it may hold slashes."""
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["tokenmill"] = "tokenmill"
    input_price_micros: int
    """Micro-units of currency per million prompt tokens."""
    output_price_micros: int
    """Micro-units of currency per million generated tokens."""

    @classmethod
    def of(cls, model: Model) -> Self:
        return cls(
            id=model.name,
            created=unix_seconds(model.created_at),
            input_price_micros=model.input_price_micros,
            output_price_micros=model.output_price_micros,
        )


class ModelList(WireModel):
    """All of them: models have no pages."""

    object: Literal["list"] = "list"
    data: list[ModelObject]
