"""Brings a file of the server to disk, whole or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from openai import OpenAI


def download(client: OpenAI, file_id: str | None, target: Path) -> None:
    """Stream the file to `<target>.part`, then put it in place of `target`. No id: an empty file."""
    unfinished = target.with_name(target.name + ".part")
    try:
        with unfinished.open("wb") as file:
            if file_id is not None:
                with client.files.with_streaming_response.content(file_id) as answer:
                    for part in answer.iter_bytes():
                        file.write(part)
        unfinished.replace(target)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
