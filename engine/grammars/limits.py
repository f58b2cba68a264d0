"""Limits on a grammar's size, checked before llguidance reads it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from engine.errors import InvalidRequestError

MAX_CHARACTERS = 2**20
"""Of a JSON schema or a grammar."""

MAX_OPENINGS = 20_000
"""Opening brackets and lines of a JSON schema or a grammar, each of which may stand for one more level.

llguidance descends into references and rules by recursion, and a stack overflow ends the process. These limits keep the
stack it needs below `engine.grammars.deep_stack.STACK_BYTES`. Stack for checking and compiling, in the worst of many
shapes (llguidance 1.9.1, x86-64, 2026-11-21):
  JSON schema: 4.9 KiB for each opening (nested `items`; nested `prefixItems` 3.4; in chains of definitions, arrays 3.7,
    plain references 3.3, objects and `anyOf` 3), and 0.3 KiB for each name in `required`, which has 5 characters;
  grammar: 3.1 KiB for each rule that names the next, 2.3 KiB for each terminal (4.7 for one in `~( )`), 1.8 KiB for
    each parenthesis, of which at most 29 may be nested.
So 20,000 openings need at most 96 MiB, and names in 2**20 characters 64 MiB. Everything else took the same 52 KiB at
every length: sequences, alternatives, choices, and regexes, in which llguidance allows 250 levels. Copying a matcher,
computing masks and dropping it took 24 KiB for any grammar: other threads need no larger stack.
"""


def check_text(text: str, *, title: str) -> None:
    """Raise InvalidRequestError for a JSON schema or a grammar that might need more stack than there is."""
    if len(text) > MAX_CHARACTERS:
        raise InvalidRequestError(
            f"The {title} is {len(text)} characters long; {MAX_CHARACTERS} are allowed. Make it shorter."
        )
    num_openings = sum(map(text.count, "{[(\n"))
    if num_openings > MAX_OPENINGS:
        raise InvalidRequestError(
            f"The {title} has {num_openings} opening brackets and lines; {MAX_OPENINGS} are allowed. Make it simpler."
        )


def is_small(schema: Mapping[str, Any]) -> bool:
    """Tell whether a rewritten JSON schema is within the limits of a user's."""
    try:
        check_text(json.dumps(schema, ensure_ascii=False), title="JSON schema")
    except (InvalidRequestError, RecursionError):
        return False
    return True
