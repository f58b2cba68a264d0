"""Read modules.json, sentence-transformers' list of a model's modules."""

from __future__ import annotations

from pathlib import Path

from engine.errors import ModelLoadError
from engine.pooling.json_files import read_json

TRANSFORMER, POOLING, NORMALIZE, LOGIT_SCORE = "Transformer", "Pooling", "Normalize", "LogitScore"

_KIND = "sentence_transformers."


def read_modules(path: Path) -> dict[str, str] | None:
    """Return the directory of each module by its kind, in order, None if there is no file. Raises ModelLoadError."""
    modules = read_json(path / "modules.json")
    if modules is None:
        return None
    try:
        listed = [(str(module["type"]), str(module["path"])) for module in modules]
    except (TypeError, LookupError) as error:
        raise ModelLoadError(f"{path / 'modules.json'} is no list of modules with type and path.") from error
    return {kind.rpartition(".")[2] if kind.startswith(_KIND) else kind: folder for kind, folder in listed}
