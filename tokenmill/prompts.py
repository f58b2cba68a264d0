"""Prompts and schemas of a call as text and JSON; they may be given as files or classes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenmill.errors import InputError


def prompt_of(prompt: str | Path) -> str:
    """Return the text of a template. Raises InputError where its file cannot be read."""
    if isinstance(prompt, str):
        return prompt
    if not isinstance(prompt, Path):
        raise InputError(f"the prompt is of type {type(prompt).__name__}. Give a text or a Path.", param="prompt")
    try:
        return prompt.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read the prompt {prompt}: {error}. Give the path of a UTF-8 file.") from None


def schema_of(schema: Mapping[str, Any] | type | str | Path | None) -> Any:
    """Return a JSON schema as it is, from a file, or of a pydantic model. Raises InputError."""
    if schema is None or isinstance(schema, Mapping):
        return None if schema is None else dict(schema)
    if isinstance(schema, type):
        describe = getattr(schema, "model_json_schema", None)
        if describe is None:
            raise InputError(f"the schema is the class {schema.__name__}. Give a pydantic model, a dict, or a path.")
        return describe()
    try:
        return json.loads(Path(schema).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read the schema {schema}: {error}") from None
