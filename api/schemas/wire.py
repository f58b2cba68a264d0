"""What every object of the wire has in common, and the page that lists them. Times are integer Unix seconds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Generic, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict


class WireModel(BaseModel):
    """Sent as declared: fields in their order, null where there is no value."""

    model_config = ConfigDict(
        frozen=True,
        use_attribute_docstrings=True,  # what stands below a field is its description in /openapi.json
        json_schema_serialization_defaults_required=True,  # no field is ever left out
    )

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        """Let no parametrised model look for what stands below its fields: it has it from the generic one.

        It has no source of its own, and looking for that took a fifth of the time in which an API starts.
        """
        cls.model_config["use_attribute_docstrings"] = not cls.__pydantic_generic_metadata__["parameters"]


Item = TypeVar("Item")


class WholeList(WireModel, Generic[Item]):
    """All of a kind at once: there are no pages."""

    object: Literal["list"] = "list"
    data: list[Item]


class DeletedObject(WireModel):
    """What is left of an object: `object` says of which kind."""

    id: str
    object: str
    deleted: Literal[True] = True


class ListedObject(WireModel):
    """An object that pages list; the id of a page's last one is where the next page begins."""

    id: str


Listed = TypeVar("Listed", bound=ListedObject)


class Page(WireModel, Generic[Listed]):
    object: Literal["list"] = "list"
    data: list[Listed]
    first_id: str | None
    """Null where the page is empty, as `last_id`."""
    last_id: str | None
    """The `after` of the next page."""
    has_more: bool
    """Another page with at least one object follows."""

    @classmethod
    def of(cls, data: Sequence[Listed], *, has_more: bool) -> Self:
        first_id, last_id = (data[0].id, data[-1].id) if data else (None, None)
        return cls(data=list(data), first_id=first_id, last_id=last_id, has_more=has_more)


def unix_seconds(moment: datetime) -> int:
    """Return whole seconds, rounded down: what a client compares with its own clock."""
    return int(moment.timestamp())


def unix_seconds_up(moment: datetime | None) -> int | None:
    """Return whole seconds, rounded up: a moment that is to come is never shown as one that is over."""
    return None if moment is None else math.ceil(moment.timestamp())


def unix_seconds_or_none(moment: datetime | None) -> int | None:
    return None if moment is None else unix_seconds(moment)
