"""When a starting role loads, waits, and is ready."""

from __future__ import annotations

import gc
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from cli.loading import without_collections

_LOOK_SECONDS = 0.1


def load_and_wait(*modules: str, start_file: Path | None) -> None:
    """With a start file, load the role's modules while the stack prepares its database, and wait for that."""
    if start_file is not None:
        with without_collections():
            for module in modules:
                import_module(module)
            gc.freeze()  # loaded modules stay: later collections need not walk them
        wait_for(start_file)


def wait_for(start_file: Path) -> None:
    """Return once the file exists."""
    while not start_file.exists():  # forever: the process that writes it ends us with it
        time.sleep(_LOOK_SECONDS)


def touch_when_loaded(ready_file: Path | None) -> None:
    """Create the ready file, and exclude all objects so far from garbage collection: they live as long as the process.

    A GPU worker with short lines collects often, and its modules have 200,000 objects. No collection comes before: it
    would take 0.15 s, and find 600 of them.
    """
    gc.freeze()
    if ready_file is not None:
        ready_file.touch()


def touch_when_celery_is_ready(ready_file: Path | None) -> None:
    """Create the ready file at Celery's `worker_ready`: the pool has started, and a GPU worker's engine is warm."""
    from celery.signals import worker_ready

    def on_ready(**_: Any) -> None:
        touch_when_loaded(ready_file)

    worker_ready.connect(on_ready, weak=False)
