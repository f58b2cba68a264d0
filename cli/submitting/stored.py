"""What a service stores for a command: its uploads, which are found by name, and its batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cli.client import server_errors_as_sentences

if TYPE_CHECKING:
    from openai import OpenAI

    from cli.submitting.command_folder import CommandFolder

_PAGE = 10_000
_BATCH = "batch_"


def upload_name(name: str, key: str) -> str:
    """Return the name of a command's upload: also where no start learned its id, the next one finds it."""
    return f"{name}{_ending(key)}"


def uploads_of(client: OpenAI, key: str) -> list[Any]:
    """Return the files that starts of a command have uploaded, the newest first."""
    return [file for file in client.files.list(purpose="batch", limit=_PAGE) if file.filename.endswith(_ending(key))]


def _ending(key: str) -> str:
    return f".{key}.jsonl"


def ids_stored(client: OpenAI, key: str, batches: Sequence[Any]) -> list[str]:
    """Return the ids of all that is stored for a command: its batches before the files that they read."""
    made = [batch.input_file_id for batch in batches]
    uploaded = [file.id for file in uploads_of(client, key)]
    return [batch.id for batch in batches] + list(dict.fromkeys([*made, *uploaded]))


def delete_noted(client: OpenAI, folder: CommandFolder, *, say: Callable[[str], None]) -> None:
    """Delete what a command has noted for deletion, once its outputs are written."""
    state = folder.read()
    if state.stored:
        folder.write(replace(state, stored=delete_stored(client, state.stored, say=say)))


def delete_stored(client: OpenAI, ids: Iterable[str], *, say: Callable[[str], None]) -> list[str]:
    """Delete batches and files, with their outputs; return the ids of those that are in use, and say so."""
    from openai import ConflictError

    kept = []
    with server_errors_as_sentences(client):
        for stored_id in ids:
            try:
                _delete(client, stored_id)
            except ConflictError as refusal:
                say(f"{stored_id} is not deleted: {refusal.message}")
                kept.append(stored_id)
    return kept


def _delete(client: OpenAI, stored_id: str) -> None:
    from openai import NotFoundError

    try:
        if stored_id.startswith(_BATCH):
            client.delete(f"/batches/{stored_id}", cast_to=dict[str, Any])
        else:
            client.files.delete(stored_id)
    except NotFoundError:
        pass  # an earlier start has deleted it
