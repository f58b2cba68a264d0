"""Tell the files of a model from those of another, or of the same one before they were changed."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path


def fingerprint_of(model: Path, chat_template: Path | None = None) -> str:
    """Return a digest of the path of a model's directory or file, and of its files' names, sizes and times of change.

    A chat template that takes the place of the model's own is one of them: other prompts have other answers.

    Their contents are not read, for weights have gigabytes. The same files under another path, or copied without their
    times, have another fingerprint: that costs the output that a drained worker left, and nothing else.
    """
    digest = hashlib.sha256(str(model.resolve()).encode())
    files = [model] if model.is_file() else sorted(path for path in model.rglob("*") if path.is_file())
    for path in [*files, *([chat_template] if chat_template is not None else [])]:
        status = path.stat()
        entry = [os.path.relpath(path, model), status.st_size, status.st_mtime_ns]
        digest.update(json.dumps(entry).encode())
    return digest.hexdigest()
