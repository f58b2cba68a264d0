"""Chooses the target of a command by its options and the environment."""

from __future__ import annotations

import os
from pathlib import Path

from cli.client import client_from_environment
from cli.data_dir import default_data_dir
from cli.served_model import DEMO_NAME, choose_model
from cli.service.local import LocalTarget
from cli.service.remote import remote_target
from cli.service.running import find_running
from cli.service.service import Target


def target_of(model: str | None, *, base_url: str | None, window: str, data_dir: Path | None) -> Target:
    """Return the server if one is named, otherwise this machine. Raises InputError."""
    if is_remote(base_url):
        return remote_target(client_from_environment(), model, window=window)
    return local_target(model, data_dir=data_dir or default_data_dir())


def is_remote(base_url: str | None) -> bool:
    """Return whether a server is named; `base_url` becomes that of the environment."""
    if base_url is not None:
        os.environ["TOKENMILL_BASE_URL"] = base_url
    return bool(os.environ.get("TOKENMILL_BASE_URL"))


def local_target(model: str | None, *, data_dir: Path) -> LocalTarget:
    """Return this machine with a model: a folder, a file, a Hugging Face id or `demo`.

    A running service may also be asked by the name that it serves. Raises InputError if that one lacks the model.
    """
    running = find_running(data_dir)
    if running is None:
        return LocalTarget(served=choose_model(None if model == DEMO_NAME else model), data_dir=data_dir)
    return LocalTarget(served=running.served(model), data_dir=data_dir)
