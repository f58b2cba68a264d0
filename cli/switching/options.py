"""The options of a worker of several models, and the command of the worker that serves one of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs.errors import InputError
from tokenmill.processes import command_of

_FLAGS = {"enforce_eager": "--enforce-eager", "report_decisions": "--log-decisions"}
_SWITCHES = {"overlap"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedName:
    """A model of `--models`."""

    name: str
    path: str | None
    """None: that of `models add`."""


def models_of(given: str) -> list[ServedName]:
    """Read `A,B=PATH`. Raises InputError for names that are empty or repeated, and for fewer than two."""
    models = [_model(one, given) for one in given.split(",")]
    names = [model.name for model in models]
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise InputError(f"--models is {given!r} and names {repeated!r} twice. Name each model once.")
    if len(models) < 2:
        raise InputError(f"--models is {given!r}. Name two models or more, as A,B; for one there is --model.")
    return models


def _model(one: str, given: str) -> ServedName:
    name, has_path, path = one.partition("=")
    if not name.strip() or (has_path and not path.strip()):
        raise InputError(f"--models is {given!r} and has a part {one!r}. Give names, or NAME=PATH, as A,B.")
    return ServedName(name=name.strip(), path=path.strip() if has_path else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCommand:
    """The command of a worker of one model, with the options that hold for each of them."""

    options: Mapping[str, Any]
    """Of the engine, by their names in its configuration."""
    has_suggested_sampling: bool

    def of(self, model: ServedName, *, worker_id: str, ready_file: Path) -> Sequence[str]:
        path = [] if model.path is None else ["--path", model.path]
        own = ["--worker-id", worker_id, "--ready-file", str(ready_file)]
        return command_of("cli.main", "worker", "--model", model.name, *path, *own, *self._arguments())

    def _arguments(self) -> Iterator[str]:
        if self.has_suggested_sampling:
            yield "--suggested-sampling"
        for name, value in self.options.items():
            option = f"--{name.replace('_', '-')}"
            if name in _FLAGS:
                yield from [_FLAGS[name]] if value else []
            elif name in _SWITCHES:
                yield option if value else option.replace("--", "--no-", 1)
            else:
                yield from (option, str(value))
