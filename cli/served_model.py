"""The model that a stack serves: a folder, a GGUF file, a Hugging Face id, or the demo model of a checkout."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from engine.errors import ModelLoadError
from jobs.errors import InputError

DEMO_NAME = "demo"
_HUB_ID = re.compile(r"([\w.-]+/[\w.-]+)(@[\w./-]+)?", re.ASCII)
_CONFIG = "config.json"
_GGUF = ".gguf"
_GGUF_MAGIC = b"GGUF"
_MOST_CONFIG_BYTES = 16 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A model and its served name."""

    name: str
    """The name in requests."""
    path: str
    """An absolute path of a folder or GGUF file, or a Hugging Face id, perhaps with a revision: `org/name@revision`; or
    the URL of the server that has it."""
    name_at_server: str | None = None
    """Its name at a server; None: the one in requests, or the only one there."""


def choose_model(model: str | None, *, name: str | None = None) -> ServedModel:
    """Return the model for `--model`, served as `name` (default: the name of the folder or file, or the id).

    Raises InputError for a path without a model, and if `model` is None and there is no demo model.
    """
    if model is None:
        folder = demo_model_folder()
        if folder is None:
            raise InputError(
                "no model was given. Say which with --model: a folder with config.json, FILE.gguf, or org/name."
            )
        return ServedModel(name=name or DEMO_NAME, path=str(folder))
    path = Path(model).expanduser()
    hub_id = _HUB_ID.fullmatch(model)
    if path.exists() or hub_id is None or model.startswith(".") or _is_gguf(path):
        _require_model(path, model)
        path = path.absolute() if _is_gguf(path) else path.resolve()  # the hub's cache links to files of other names
        return ServedModel(name=name or _name_of(path), path=str(path))
    return ServedModel(name=name or hub_id[1], path=model)


def is_readable_here(model: str) -> bool:
    """Return whether a model's files are on this machine; False for a hub id, or a folder that only workers have.

    Raises InputError for files that are here but are not a model, or cannot be read.
    """
    path = Path(model).expanduser()
    if not path.exists():
        return False
    _require_model(path, model)
    file = path if _is_gguf(path) else path / _CONFIG
    try:
        with file.open("rb") as opened:
            content = opened.read(len(_GGUF_MAGIC) if _is_gguf(path) else _MOST_CONFIG_BYTES)
        is_model = content.startswith(_GGUF_MAGIC) if _is_gguf(path) else isinstance(json.loads(content), dict)
    except (OSError, ValueError) as error:
        raise InputError(f"{file} cannot be read: {error}. Copy the model here again.") from None
    if not is_model:
        raise InputError(f"the content of {file} does not match its name. Copy the model here again.")
    return True


def is_adapter_readable_here(model: str, folder: str) -> bool:
    """Return whether an adapter and its model are on this machine; False for a folder that only workers have.

    Raises InputError for an adapter that is here and does not fit the model.
    """
    from engine.models.adapters.files import read_adapter
    from engine.models.config import load_model_config

    if not Path(folder).exists() or not Path(model).exists():
        return False
    try:
        read_adapter(Path(folder), load_model_config(model))
    except ModelLoadError as error:
        raise InputError(str(error), param="adapter", code="adapter_not_usable") from None
    return True


def demo_model_folder() -> Path | None:
    """Return the demo model, if this code runs from a checkout."""
    folder = Path(__file__).resolve().parent.parent / "examples" / "demo_model"
    return folder if (folder / _CONFIG).is_file() else None


def _is_gguf(path: Path) -> bool:
    return path.suffix.lower() == _GGUF


def _name_of(path: Path) -> str:
    if _is_gguf(path):
        return path.stem
    return DEMO_NAME if path == demo_model_folder() else path.name


def _require_model(path: Path, model: str) -> None:
    if not path.exists():
        raise InputError(
            f"there is no model at {model}. Give a folder that contains {_CONFIG} and safetensors files, a file whose "
            f"name ends in {_GGUF}, or a Hugging Face id like org/name or org/name@revision."
        )
    if _is_gguf(path) and path.is_file():
        return
    if path.is_file() and _begins_as_gguf(path):
        raise InputError(f"{model} is a GGUF file, but its name does not end in {_GGUF}. Rename it.")
    if not (path / _CONFIG).is_file():
        files = sorted(entry.name for entry in path.glob("*") if _is_gguf(entry))
        instead = f"Give the file: {path / files[0]}." if files else "Give the folder that contains it."
        raise InputError(f"{model} contains no model: {_CONFIG} is missing. {instead}")


def _begins_as_gguf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_GGUF_MAGIC)) == _GGUF_MAGIC
