"""Which model a stack serves: a folder, a Hugging Face id, or the demo model of a checkout."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from jobs.errors import InputError

DEMO_NAME = "demo"
_HUB_ID = re.compile(r"([\w.-]+/[\w.-]+)(@[\w./-]+)?", re.ASCII)
_CONFIG = "config.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A model and what it is called."""

    name: str
    """What requests say."""
    path: str
    """An absolute folder or a Hugging Face id, perhaps with the revision to fetch: `org/name@revision`."""


def choose_model(given: str | None, *, name: str | None = None) -> ServedModel:
    """Return the model for `--model given`, served as `name` (default: the folder's name, or the id).

    Raises InputError for a folder that holds no model, and where nothing is given and there is no demo model.
    """
    if given is None:
        folder = demo_model_folder()
        if folder is None:
            raise InputError("no model was given. Say which with --model: a folder with config.json, or org/name.")
        return ServedModel(name=name or DEMO_NAME, path=str(folder))
    folder = Path(given).expanduser()
    hub_id = _HUB_ID.fullmatch(given)
    if folder.exists() or hub_id is None or given.startswith("."):
        _require_model_folder(folder, given)
        folder = folder.resolve()
        is_demo = folder == demo_model_folder()
        return ServedModel(name=name or (DEMO_NAME if is_demo else folder.name), path=str(folder))
    return ServedModel(name=name or hub_id[1], path=given)


def demo_model_folder() -> Path | None:
    """Return the demo model of the checkout this code runs from, if it does."""
    folder = Path(__file__).resolve().parent.parent / "examples" / "demo_model"
    return folder if (folder / _CONFIG).is_file() else None


def _require_model_folder(folder: Path, given: str) -> None:
    if not folder.exists():
        raise InputError(
            f"there is no model at {given}. Give a folder that holds {_CONFIG} and safetensors files, "
            "or a Hugging Face id like org/name or org/name@revision."
        )
    if not (folder / _CONFIG).is_file():
        raise InputError(f"{given} holds no model: {_CONFIG} is missing. Give the folder that contains it.")
