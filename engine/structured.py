"""Constraints on an output's text: `StructuredOutput`, one of JSON, a regex, a choice, a grammar.

The value is only checked for consistency; engine/grammars/grammar.py checks whether it compiles.
"""

from __future__ import annotations

import json as json_module
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.errors import InvalidParamsError, InvalidRequestError

_KINDS = ("json", "json_object", "regex", "choice", "grammar")
_FLAGS = ("json_object", "any_whitespace", "one_of_as_any_of")

MAX_LEVELS = 124
"""Maximum nesting of objects and arrays in a JSON schema, itself included.

serde_json, which parses it for llguidance, stops at 128, and three levels wrap the schema (llguidance 1.9.1).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutput:
    """Constrain the output to one kind of text.

    Raises InvalidParamsError unless exactly one kind is given, InvalidRequestError for a schema of too many levels.
    """

    json: str | Mapping[str, Any] | None = None
    """A JSON schema, as text or as an object; stored as text: the order of `properties` is the order of the output."""
    json_object: bool = False
    """Any JSON object."""
    regex: str | None = None
    """Must match the whole output."""
    choice: Sequence[str] | None = None
    """The allowed texts."""
    grammar: str | None = None
    """In llguidance's dialect of Lark, or in EBNF (`root ::= …`)."""
    any_whitespace: bool = False
    """Allow white space between the tokens of JSON. Without it there are fewer tokens, and whole keys are known before
    they are sampled.
    """
    one_of_as_any_of: bool = False
    """Treat `oneOf` in a JSON schema as `anyOf`: a text may then match more than one branch."""

    def __post_init__(self) -> None:
        for name in _FLAGS:
            if not isinstance(getattr(self, name), bool):
                raise InvalidParamsError(f"{name} is {getattr(self, name)!r}; it must be True or False.")
        kinds = [name for name in _KINDS if getattr(self, name) not in (None, False)]
        if len(kinds) != 1:
            raise InvalidParamsError(
                f"structured output has {' and '.join(kinds) or 'no kind'}; give exactly one of {', '.join(_KINDS)}."
            )
        if self.json is not None:
            object.__setattr__(self, "json", _schema_text(self.json))
        if self.choice is not None:
            object.__setattr__(self, "choice", _choices(self.choice))
        for name in ("regex", "grammar"):
            text = getattr(self, name)
            if text is not None and (not isinstance(text, str) or not text):
                raise InvalidParamsError(f"{name} is {text!r}; it must be a non-empty string.")

    @property
    def kind(self) -> str:
        """Return the name of the one constraint that is set."""
        return next(name for name in _KINDS if getattr(self, name) not in (None, False))


def _schema_text(schema: object) -> str:
    """Return a schema as text. Raises InvalidRequestError if it is nested deeper than llguidance reads."""
    try:
        parsed = json_module.loads(schema) if isinstance(schema, str) else schema
        text = json_module.dumps(dict(parsed), ensure_ascii=False) if isinstance(parsed, Mapping) else None
    except (TypeError, ValueError) as error:
        raise InvalidParamsError(f"json is no JSON schema: {error}.") from error
    except RecursionError:
        raise _too_deep("too many") from None
    if text is None:
        raise InvalidParamsError(f"json is {type(parsed).__name__}; it must be a JSON schema: an object, or its text.")
    num_levels = num_levels_of(parsed)
    if num_levels > MAX_LEVELS:
        raise _too_deep(num_levels)
    return text


def num_levels_of(value: object) -> int:
    """Return the nesting depth of objects and arrays, `value` included."""
    num_levels = 0
    inner: list[Any] = [value]
    while inner:
        num_levels += 1
        parts = (part for one in inner for part in (one.values() if isinstance(one, Mapping) else one))
        inner = [part for part in parts if isinstance(part, Mapping | list | tuple)]
    return num_levels


def _too_deep(num_levels: int | str) -> InvalidRequestError:
    return InvalidRequestError(
        f"The JSON schema is nested {num_levels} levels deep; {MAX_LEVELS} are allowed. Make it flatter, or put inner "
        "parts under $defs and refer to them."
    )


def _choices(choices: object) -> tuple[str, ...]:
    texts = tuple(choices) if isinstance(choices, Sequence) and not isinstance(choices, str) else ()
    if not texts or not all(isinstance(text, str) and text for text in texts):
        raise InvalidParamsError(f"choice is {choices!r}; it must list at least one non-empty string.")
    return texts
