"""Identify encoders by the contents of their directories."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

_SUFFIXES = {".json", ".safetensors", ".txt"}
"""Weights, configurations and tokenizers; other files of a directory change no vector."""


def model_sha256(folder: Path) -> str:
    """Return a hash of all files below a directory that determine a text's vector, and of their names."""
    paths = sorted(path for path in folder.rglob("*") if path.suffix in _SUFFIXES and path.is_file())
    return _sha256(folder, paths)


def tokenizer_sha256(folder: Path) -> str:
    """Return a hash of a directory's tokenizer."""
    return _sha256(folder, [folder / "tokenizer.json"])


def _sha256(folder: Path, paths: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            own = hashlib.file_digest(file, "sha256").hexdigest()
        digest.update(f"{path.relative_to(folder).as_posix()} {own}\n".encode())
    return digest.hexdigest()
