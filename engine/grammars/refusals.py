"""Errors for grammars that llguidance refuses: its message in our words."""

from __future__ import annotations

import json
import re

from engine.errors import InvalidRequestError
from engine.grammars.matcher import shortened
from engine.structured import StructuredOutput

TITLES = {
    "json": "JSON schema",
    "json_object": "JSON schema",
    "regex": "regex",
    "choice": "choice",
    "grammar": "grammar",
}

_COERCE = "Enable 'coerce_one_of' option"
_COERCE_HERE = "Set one_of_as_any_of to true in the line"
"""Our name for the option that llguidance names."""

_NOTHING_FITS = "NoExtensionBias"
"""llguidance's message if no first token is possible."""


def refusal(structured: StructuredOutput, message: str) -> InvalidRequestError:
    """Return the error for a grammar that llguidance refuses with a message."""
    unsupported = re.search(r"Unimplemented keys: (\[.*?\])", message)
    if unsupported is not None:
        names = ", ".join(json.loads(unsupported[1]))
        return InvalidRequestError(f"The JSON schema uses {names}, which is not supported; remove it.")
    if structured.regex is not None and (cause := re.search("^error: (.*)", message, re.MULTILINE)):
        message = cause[1]  # before it is a grammar that the user has not written
    if shortened(message) == _NOTHING_FITS:
        message = "no text fits it; a rule that leads only to itself, or to what cannot be, never ends"
    message = message.replace(_COERCE, _COERCE_HERE)
    return InvalidRequestError(f"The {TITLES[structured.kind]} cannot be used: {shortened(message)}.")
