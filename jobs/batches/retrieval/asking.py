"""Writes what the next stages are asked: queries to be embedded, or passages to be found.

Objects that no row names yet; where nothing comes of them they are swept.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import orjson

from jobs import files
from jobs.batches.made_inputs import InputWriter, open_input
from jobs.batches.retrieval.results import INDEX_NOT_FOUND, UNAVAILABLE, StageError, StageResults
from jobs.batches.retrieval.stages import Stage
from jobs.errors import InputError
from jobs.files import NewFile
from jobs.lines.body_context import ContextRequest
from jobs.lines.embedding_bodies import EMBEDDING_ENDPOINT, Encoding
from jobs.lines.passage_bodies import FIND_ENDPOINT, find_body
from jobs.lines.reading import InputLine, RawLine
from jobs.settings import Settings
from jobs.states import StageKind
from jobs.storage import Storage

_TOKENS_AROUND = 8
"""More than a tokenizer adds to a text at its begin and end."""
_EMPTY = StageError(code="empty_query", message="the query of its context has no word")
Line = tuple[RawLine, Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedder:
    """What makes vectors of the queries of an index."""

    model: str
    query_prefix: str
    max_tokens: int
    """Of a text."""

    def may_cut(self, text: str) -> bool:
        """Tell whether a text may have more tokens than are read: each has a byte at least, as tokenizers write it."""
        return len(unicodedata.normalize("NFKC", text).encode()) + _TOKENS_AROUND > self.max_tokens


EmbedderOf = Callable[[str], Embedder | None]
"""Return what embeds the queries of a tenant's index, None: nothing. Raises InputError where it cannot be searched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewStage:
    """A stage to be begun."""

    kind: StageKind
    model: str | None
    endpoint: str
    lines: NewFile


class Asking:
    """Takes the lines of an input in order; those that want passages are asked about, and none is changed."""

    def __init__(
        self,
        storage: Storage,
        closing: ExitStack,
        *,
        batch_id: str,
        tenant_id: str,
        embedded: Sequence[Stage],
        embedder_of: EmbedderOf,
        settings: Settings,
    ) -> None:
        """What is written is whole once `closing` is closed; `embedded` are the stages that made vectors so far."""
        self._storage = storage
        self._closing = closing
        self._batch_id = batch_id
        self._tenant_id = tenant_id
        self._settings = settings
        self._embedder_of = embedder_of
        self._embedders: dict[str, Embedder | StageError | None] = {}
        self._vectors = {stage.model: StageResults(storage, stage) for stage in embedded}
        self._is_embedded = bool(embedded)
        self._writers: dict[str | None, tuple[str, InputWriter]] = {}
        """Of the lines for a model, those to be found under None; with the key of the object."""

    def skip(self, raw: RawLine) -> None:
        """Pass over a line that is not run."""

    def fill(self, line: InputLine, raw: RawLine, wanted: ContextRequest | None) -> Line:
        """Return the line as it is."""
        if wanted is not None:
            embedder = self._embedder(wanted.index) if wanted.query.strip() else _EMPTY
            if embedder is None or isinstance(embedder, StageError):
                self._find(line, wanted, embedder)
            elif self._is_embedded:
                self._find(line, wanted, self._vector_of(line, embedder))
            else:
                self._embed(line, wanted, embedder)
        return raw, line.body

    def stages(self) -> list[NewStage]:
        """Return what is to be begun, once it is whole: every embedding before anything is found."""
        models = [model for model in self._writers if model is not None]
        return [self._stage(model) for model in models] or [self._stage(None)]

    def _stage(self, model: str | None) -> NewStage:
        kind, endpoint = (StageKind.FIND, FIND_ENDPOINT) if model is None else (StageKind.EMBED, EMBEDDING_ENDPOINT)
        key, writer = self._writers[model]
        lines = writer.new_file(key, filename=f"{self._batch_id}_{kind}.jsonl")
        return NewStage(kind=kind, model=model, endpoint=endpoint, lines=lines)

    def _embedder(self, index: str) -> Embedder | StageError | None:
        if index not in self._embedders:
            try:
                self._embedders[index] = self._embedder_of(index)
            except InputError as error:
                self._embedders[index] = StageError(code=error.code or INDEX_NOT_FOUND, message=error.message)
        return self._embedders[index]

    def _vector_of(self, line: InputLine, embedder: Embedder) -> str | StageError:
        results = self._vectors.get(embedder.model)
        if results is None:
            return StageError(code=UNAVAILABLE, message=f"its query was not embedded by {embedder.model}")
        answer = results.take(line.custom_id)
        return answer if isinstance(answer, StageError) else str(answer["data"][0]["embedding"])

    def _embed(self, line: InputLine, wanted: ContextRequest, embedder: Embedder) -> None:
        text = embedder.query_prefix + wanted.query
        body: dict[str, Any] = {"model": embedder.model, "input": text, "encoding_format": Encoding.BASE64}
        if wanted.truncate and embedder.may_cut(text):
            body["truncate"] = True
        self._write(embedder.model, line, EMBEDDING_ENDPOINT, body)

    def _find(self, line: InputLine, wanted: ContextRequest, vector: str | StageError | None) -> None:
        if isinstance(vector, StageError):
            body = find_body(wanted, error={"code": vector.code, "message": vector.message})
        else:
            body = find_body(wanted, vector=vector)
        self._write(None, line, FIND_ENDPOINT, body)

    def _write(self, model: str | None, line: InputLine, endpoint: str, body: Mapping[str, Any]) -> None:
        if model not in self._writers:
            key = files.new_object_key(self._tenant_id)
            opened = self._closing.enter_context(open_input(self._storage, key, settings=self._settings))
            self._writers[model] = key, opened
        asked = {"custom_id": line.custom_id, "method": "POST", "url": endpoint, "body": body}
        self._writers[model][1].write(orjson.dumps(asked))
