"""Types of query and body fields that several endpoints share, with their limits."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StrictInt, model_validator
from pydantic_core import PydanticCustomError

from jobs.files import MAX_EXPIRY_SECONDS, MIN_EXPIRY_SECONDS


def storable(text: str) -> str:
    """Refuse what Postgres cannot store: NUL, and unpaired surrogates from JSON escapes."""
    if "\x00" in text or any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError("Text must not hold NUL characters or unpaired surrogates")
    return text


STORABLE_PATTERN = r"^[^\u0000]*$"

Storable = Annotated[str, AfterValidator(storable), Field(json_schema_extra={"pattern": STORABLE_PATTERN})]
ObjectId = Annotated[Storable, Field(min_length=1, max_length=100)]


def _whole(value: object) -> object:
    """Turn 3600.0 into an integer, as it is one for JSON Schema and for clients whose numbers are floats."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


WHOLE = BeforeValidator(_whole)


class Order(StrEnum):
    ASC = "asc"
    DESC = "desc"


UNKNOWN_PARAMETERS = "unknown_parameters"
_LISTED_UNKNOWN = 5


class StrictModel(BaseModel):
    """Fields of a query or body; unknown ones are refused, and the first of them named."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown(cls, value: Any) -> Any:
        """Raise one error for all unknown keys: pydantic's errors for thousands would block the event loop for 1 s."""
        known = {field.alias or name for name, field in cls.model_fields.items()}
        if isinstance(value, dict) and not value.keys() <= known:
            unknown = [key for key in value if key not in known]
            context = {"names": unknown[:_LISTED_UNKNOWN], "total": len(unknown)}
            raise PydanticCustomError(UNKNOWN_PARAMETERS, "unknown parameters", context)
        return value

    def prepared(self) -> Self:
        """Return what the endpoint needs of a large body; called in the parsing process. Raise InputError."""
        return self


class PageQuery(StrictModel):
    """The start and the maximum length of a page of a list."""

    after: ObjectId | None = None
    limit: Annotated[int, Field(ge=1, le=100)] = 20


class ExpiresAfter(StrictModel):
    """When an object expires, counted from its creation."""

    anchor: Literal["created_at"]
    seconds: Annotated[StrictInt, Field(ge=MIN_EXPIRY_SECONDS, le=MAX_EXPIRY_SECONDS), WHOLE]
