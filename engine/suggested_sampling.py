"""Sampling parameters that a model's generation_config.json suggests, those that vLLM takes from it too."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.errors import InvalidParamsError, ModelLoadError
from engine.params import SamplingParams

FILE = "generation_config.json"
NAMES = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def suggested_sampling(model: Path) -> Mapping[str, Any]:
    """Return the suggested parameters of a model's directory, by name; none without the file.

    Raises ModelLoadError for a file that cannot be read, or a value out of range.
    """
    path = model / FILE
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        values = {name: content[name] for name in NAMES if content.get(name) is not None}
        SamplingParams(**values)
    except (OSError, ValueError, AttributeError) as error:
        raise ModelLoadError(f"{path} cannot be read: {error}. Mend it, or leave the option out.") from None
    except InvalidParamsError as error:
        raise ModelLoadError(f"{path}: {error} Mend it, or leave the option out.") from None
    return values
