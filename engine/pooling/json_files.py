"""Read the JSON files that lie in a model's folder; knows nothing of what they say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from engine.errors import ModelLoadError


def read_object(path: Path) -> dict[str, Any]:
    """Return a file's JSON object, an empty one where there is no file. Raises ModelLoadError when it is none."""
    found = read_json(path)
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise ModelLoadError(f"{path} holds no JSON object; copy the whole model directory again.")
    return found


def read_json(path: Path) -> Any:
    """Return what a file says, None where there is no file. Raises ModelLoadError when it cannot be read."""
    if not path.is_file():
        return None
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{path} cannot be read as JSON: {error}.") from error
