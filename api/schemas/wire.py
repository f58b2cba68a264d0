"""Base classes of the API's response objects and pages. Times are integer Unix seconds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Generic, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict


class WireModel(BaseModel):
    """Base of response objects: fields in the declared order, null if there is no value."""

    model_config = ConfigDict(
        frozen=True,
        use_attribute_docstrings=True,  # the docstring below a field is its description in /openapi.json
        json_schema_serialization_defaults_required=True,  # no field is ever omitted
    )

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        """Keep parametrised models from searching for attribute docstrings, which they inherit from the generic one.

        They have no source of their own, and the search took a fifth of the API's start-up time.
        """
        cls.model_config["use_attribute_docstrings"] = not cls.__pydantic_generic_metadata__["parameters"]


Item = TypeVar("Item")


class WholeList(WireModel, Generic[Item]):
    """A complete list, without pages."""

    object: Literal["list"] = "list"
    data: list[Item]


class DeletedObject(WireModel):
    """The response to a deletion; `object` is the kind of the deleted object."""

    id: str
    object: str
    deleted: Literal[True] = True


class ListedObject(WireModel):
    """An object in pages; the id of a page's last object is where the next page begins."""

    id: str


Listed = TypeVar("Listed", bound=ListedObject)


class Page(WireModel, Generic[Listed]):
    object: Literal["list"] = "list"
    data: list[Listed]
    first_id: str | None
    """Null, like `last_id`, if the page is empty."""
    last_id: str | None
    """The `after` of the next page."""
    has_more: bool
    """Whether another page with at least one object follows."""

    @classmethod
    def of(cls, data: Sequence[Listed], *, has_more: bool) -> Self:
        first_id, last_id = (data[0].id, data[-1].id) if data else (None, None)
        return cls(data=list(data), first_id=first_id, last_id=last_id, has_more=has_more)


def unix_seconds(moment: datetime) -> int:
    """Return whole seconds, rounded down."""
    return int(moment.timestamp())


def unix_seconds_up(moment: datetime | None) -> int | None:
    """Return whole seconds, rounded up, so that a future time never appears as past."""
    return None if moment is None else math.ceil(moment.timestamp())


def unix_seconds_or_none(moment: datetime | None) -> int | None:
    return None if moment is None else unix_seconds(moment)
