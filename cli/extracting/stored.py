"""What a service stores for a command: files, a collection of them, its extraction. All are found by the key."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from cli.calls import Calls, named
from cli.extracting.order import Input

ENDED_WITHOUT = ("failed", "cancelled")
"""States of an extraction that has ended and has no records."""
_KEY = "tokenmill_extract"
"""The name of the key in the metadata of the collection and the extraction."""
_EXAMPLES = "examples"
_FILES_A_CALL = 1000
_FILES_A_PAGE = 10_000
_ALL = 10**9
_MAX_TRIES = 100
"""Most extractions of a command that failed or were cancelled and are kept."""

Send = Callable[[Sequence[tuple[Input, str]]], Iterable[str]]
"""Uploads documents, each under a name, and returns the ids of their files."""


class StoredWork:
    """The work of the command with a key at a service; each call may be repeated after a failure or a kill."""

    def __init__(self, calls: Calls, key: str) -> None:
        self._calls = calls
        self._key = key

    def collection(self, name: str) -> dict[str, Any]:
        """Return the collection that an earlier start has made, or a new one."""
        for one in self._calls.pages("/collections", limit=_ALL):
            if self._is_own(one):
                return one
        return self._calls.post("/collections", {"name": name, "metadata": self._metadata})

    def fill(self, collection: Mapping[str, Any], inputs: Sequence[Input], *, send: Send) -> None:
        """Upload the documents that are not there yet, and add all to the collection, in their order."""
        if collection["num_documents"] >= len(inputs):
            return
        ids = {file.filename: str(file.id) for file in self._files(collection)}
        names = [self._file_name(str(number)) for number in range(len(inputs))]
        missing = [(one, name) for one, name in zip(inputs, names, strict=True) if name not in ids]
        ids.update(zip((name for _, name in missing), send(missing), strict=True))
        files = [{"file_id": ids[name], "name": one.name} for one, name in zip(inputs, names, strict=True)]
        path = named("collections", collection["id"], "/documents")
        for at in range(0, len(files), _FILES_A_CALL):
            self._calls.post(path, {"files": files[at : at + _FILES_A_CALL]})

    def examples(self, collection: Mapping[str, Any], content: bytes) -> str:
        """Return the id of the gold file with the examples; upload it unless an earlier start has."""
        name = self._file_name(_EXAMPLES)
        for file in self._files(collection):
            if file.filename == name:
                return str(file.id)
        return str(self._calls.client.files.create(file=(name, content), purpose="user_data").id)

    def extraction(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the extraction of earlier starts that is open or has records, or a new one."""
        for number in range(_MAX_TRIES):
            asked = {**body, "metadata": self._metadata}
            extraction = self._calls.post("/extractions", asked, key=f"extract-{self._key}-{number}")
            if extraction["status"] not in ENDED_WITHOUT:
                break
        return extraction

    def delete(self, stored_id: str) -> None:
        """Delete an extraction; or a collection with this command's extractions of it and its files."""
        if stored_id.startswith("extraction_"):
            self._delete(named("extractions", stored_id))
        elif (collection := self._calls.find(named("collections", stored_id))) is not None:
            self._delete_collection(collection)

    def _delete_collection(self, collection: Mapping[str, Any]) -> None:
        for extraction in self._calls.pages("/extractions", limit=_ALL, collection_id=collection["id"]):
            if self._is_own(extraction):
                self._delete(named("extractions", extraction["id"]))
        for file in self._files(collection):
            self._delete(named("files", file.id))
        self._delete(named("collections", collection["id"]))  # last: the others are found by it

    def _delete(self, path: str) -> None:
        from openai import NotFoundError

        with suppress(NotFoundError):  # an earlier start has deleted it
            self._calls.delete(path)

    def _files(self, collection: Mapping[str, Any]) -> list[Any]:
        """Return the files of this command: none is older than its collection."""
        files = []
        for file in self._calls.client.files.list(purpose="user_data", limit=_FILES_A_PAGE):
            if file.created_at < collection["created_at"]:
                break
            if file.filename.endswith(f".{self._key}"):
                files.append(file)
        return files

    def _file_name(self, what: str) -> str:
        return f"{what}.{self._key}"

    @property
    def _metadata(self) -> dict[str, str]:
        return {_KEY: self._key}

    def _is_own(self, one: Mapping[str, Any]) -> bool:
        return (one["metadata"] or {}).get(_KEY) == self._key
