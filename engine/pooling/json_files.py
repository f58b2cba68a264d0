"""Read the JSON files in a model's directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from engine.errors import ModelLoadError


def read_object(path: Path) -> dict[str, Any]:
    """Return a file's JSON object, an empty one if there is no file. Raises ModelLoadError if it is no object."""
    content = read_json(path)
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ModelLoadError(f"{path} holds no JSON object; copy the whole model directory again.")
    return content


def read_json(path: Path) -> Any:
    """Return a file's content, None if there is no file. Raises ModelLoadError if it cannot be read."""
    if not path.is_file():
        return None
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{path} cannot be read as JSON: {error}.") from error
