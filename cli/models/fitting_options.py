"""The options of a worker that belong to one kind of engine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cli.models.model_server import EngineKind
from engine.config import EngineConfig
from engine.errors import InvalidConfigError
from jobs.errors import InputError

OF_ENCODERS = "int8"
"""A dtype of encoders alone, which the worker checks once it knows the kind of its model."""


def require_fitting(
    engine: EngineKind,
    *,
    url: str | None,
    own: dict[str, Any],
    has_files: bool,
    remote: Mapping[str, Any],
    model: str | None,
    models: str | None = None,
) -> None:
    """Raise InputError for options of the other kind of engine, and for those that are missing or out of range."""
    is_of_encoders = own.get("dtype") == OF_ENCODERS
    try:
        config = EngineConfig(model="", **(own | {"dtype": "auto"} if is_of_encoders else own))
    except InvalidConfigError as error:
        raise InputError(str(error)) from None
    if engine is EngineKind.OWN:
        if url is not None or remote:
            raise InputError("--url and the options of a server need --engine openai.")
        if model is None and models is None:
            raise InputError("no model was named. Give its served name with --model.")
        return
    if models is not None:
        raise InputError("--models is of our engine. Start a worker for each model of a server, with --model.")
    if url is None:
        raise InputError("--engine openai needs the server's address: --url http://host:8000/v1.")
    if has_files or is_of_encoders or config != EngineConfig(model="", max_model_len=config.max_model_len):
        raise InputError(
            "--engine openai has its model and settings at the server. Leave out --path, --chat-template, "
            "--suggested-sampling and the options of our engine, except --max-model-len."
        )


def require_several(*, model: str | None, path: str | None, chat_template: Path | None) -> None:
    """Raise InputError for options of one model beside several."""
    if model is not None:
        raise InputError(f"--model is {model!r}, and --models names all. Give one of the two.")
    if path is not None:
        raise InputError(f"--path is {path!r} and of one model. Give it within --models, as NAME=PATH.")
    if chat_template is not None:
        raise InputError(
            f"--chat-template is {chat_template} and of one model. Put it into the model's tokenizer_config.json, or "
            "serve that model alone."
        )
