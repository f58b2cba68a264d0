"""Find a model on the disk or on the hub: a directory in transformers' layout, or one GGUF file."""

from __future__ import annotations

from pathlib import Path

from engine.errors import ModelLoadError
from engine.gguf.container import is_gguf

HUB_FILES = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja"]
HUB_FILES_IN_ANOTHER_FORM = ["original/*"]  # gpt-oss has a second copy of its weights there


def resolve_model_path(model: str) -> Path:
    """Return the model's directory or GGUF file; a name like `org/model` that is neither is fetched from the hub.

    `org/model@revision` is fetched at that branch, tag or commit. Raises ModelLoadError if it is no model, or cannot be
    fetched.
    """
    path = Path(model).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelLoadError(f"{path} has no config.json; {_instead_of_folder(path)}")
        return path
    if is_gguf(path) and path.is_file():
        return path
    hub_id, at, revision = model.partition("@")
    is_hub_id = hub_id.count("/") == 1 and not model.startswith((".", "/", "~")) and not path.exists()
    if not is_hub_id or is_gguf(path):
        raise ModelLoadError(
            f"There is no model directory at {path}; give one with config.json, a file whose name ends in .gguf, "
            "or org/model of the hub."
        )
    if at and not revision:
        raise ModelLoadError(f"{model} names no revision after @; give a branch, tag or commit, or leave out the @.")
    return _fetch_from_hub(hub_id, revision=revision or None)


def described_by(path: Path) -> str:
    """Return, for errors, what describes the format of a model's weights."""
    return "metadata" if is_gguf(path) else "config.json"


def _instead_of_folder(path: Path) -> str:
    files = sorted(entry.name for entry in path.iterdir() if is_gguf(entry))
    if files:
        return f"to run a GGUF file in it, give the file: {path / files[0]}."
    return "give a model directory as transformers' save_pretrained writes it."


def _fetch_from_hub(hub_id: str, *, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download  # noqa: PLC0415 - a slow import that local models do not need

    try:
        return Path(
            snapshot_download(
                hub_id,
                revision=revision,
                allow_patterns=HUB_FILES,
                ignore_patterns=HUB_FILES_IN_ANOTHER_FORM,
            )
        )
    except Exception as error:
        name = f"{hub_id} at {revision}" if revision else hub_id
        raise ModelLoadError(f"{name} could not be fetched from the Hugging Face hub: {_reason_of(error)}.") from error


def _reason_of(error: Exception) -> str:
    """Return why the hub gave no model, and what to do."""
    from huggingface_hub import errors  # noqa: PLC0415 - as above

    if isinstance(error, errors.LocalEntryNotFoundError):
        return (
            "it cannot be reached, and this machine has no complete copy. Connect the machine, or copy the model's "
            "folder here and give its path"
        )
    if isinstance(error, errors.GatedRepoError):
        return "its makers ask for consent. Accept its terms on the hub, and set HF_TOKEN to a token of that account"
    if isinstance(error, errors.RevisionNotFoundError):
        return "there is no such revision. Give a branch, tag or commit of the model"
    if isinstance(error, errors.RepositoryNotFoundError):
        return "there is no such model, or it is private. Correct the name, or set HF_TOKEN"
    return " ".join(str(error).split())[:200].rstrip(".")
