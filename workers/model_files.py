"""A fingerprint of a model's files, which tells models apart and changes when the files do."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any


def fingerprint_of(
    model: Path, chat_template: Path | None = None, defaults: Mapping[str, Any] = MappingProxyType({})
) -> str:
    """Return a digest of the path of a model's directory or file and of its files' names, sizes and change times.

    A chat template that replaces the model's counts as one of the files, as it changes the prompts; `defaults` of
    sampling count too.

    Contents are not read, as weights have gigabytes. The same files under another path, or copied without their times,
    have another fingerprint; then only the output that a drained worker left is lost.
    """
    digest = hashlib.sha256(str(model.resolve()).encode())
    files = [model] if model.is_file() else sorted(path for path in model.rglob("*") if path.is_file())
    for path in [*files, *([chat_template] if chat_template is not None else [])]:
        status = path.stat()
        entry = [os.path.relpath(path, model), status.st_size, status.st_mtime_ns]
        digest.update(json.dumps(entry).encode())
    if defaults:
        digest.update(json.dumps(defaults, sort_keys=True).encode())
    return digest.hexdigest()
