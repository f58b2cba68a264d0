"""What `tokenmill extract` asks a service for, and the key by which the same command finds it again."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cli.extracting.outputs import Outputs
from cli.submitting.command_folder import CommandFolder, sha256_of
from features.documents.extraction.course.job import ExtractJob
from features.documents.extraction.documents.parsing import PARSERS
from jobs.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """A document of the command."""

    path: Path
    sha256: str

    @property
    def name(self) -> str:
        return name_of(self.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """An extraction of documents, or of an index."""

    job: ExtractJob
    body: Mapping[str, Any]
    """Of the request that creates the extraction, without the ids that a service gives and without its window."""
    outputs: Outputs
    inputs: Sequence[Input] = ()
    """The documents in their order; none for an index."""
    examples: bytes | None = None
    """A gold file."""


def inputs_of(paths: Iterable[Path]) -> list[Input]:
    """Return documents with their digests. Raises InputError if one cannot be read."""
    return [Input(path=path, sha256=_digest(path)) for path in paths]


def folder_of(order: Order, *, place: str, data_dir: Path) -> CommandFolder:
    """Return the folder of the command with this order at a place.

    Its key depends on everything that records depend on, the version of the parsers included, and on the outputs.
    """
    job, outputs = order.job, order.outputs.paths
    index = [f"{name} {order.body[name]}" for name in ("index_id", "top_k") if name in order.body]
    named = [f"{one.name} {one.sha256}" for one in order.inputs]
    parsers = hashlib.sha256(PARSERS.encode()).hexdigest()[:12]
    absolute = [name_of(path.absolute()) for path in outputs]
    key = job.identity(place, repr(job.passes), parsers, *absolute, *index, *named)
    return CommandFolder.below(data_dir, key)


def name_of(path: Path) -> str:
    """Return a file's path for JSON: bytes that are not UTF-8 as `\\xfc`."""
    return os.fsencode(path).decode(errors="backslashreplace")


def _digest(path: Path) -> str:
    try:
        return sha256_of(path)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}. Grant access, or leave the file out.") from None
