"""Write the inputs of the next retrieval stages: queries to embed, or passages to find.

Their objects are not referenced by any row yet; unused ones are swept.
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
from jobs.batches.retrieval.stages import RetrievalStage
from jobs.errors import InputError, NotFoundError
from jobs.files import NewFile
from jobs.lines.body_context import ContextRequest
from jobs.lines.embedding_bodies import EMBEDDING_ENDPOINT, Encoding
from jobs.lines.passage_bodies import FIND_ENDPOINT, find_body
from jobs.lines.reading import InputLine, RawLine
from jobs.settings import Settings
from jobs.states import StageKind
from jobs.storage import Storage

_TOKENS_AROUND = 8
"""More than a tokenizer adds at both ends of a text."""
_EMPTY = StageError(code="empty_query", message="the query of its context has no word")
Line = tuple[RawLine, Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedder:
    """The embedding model of an index's queries."""

    model: str
    query_prefix: str
    max_tokens: int
    """Per text."""

    def may_cut(self, text: str) -> bool:
        """Return whether a text may exceed the tokens that are read; a token has at least one byte."""
        return len(unicodedata.normalize("NFKC", text).encode()) + _TOKENS_AROUND > self.max_tokens


EmbedderOf = Callable[[str], Embedder | None]
"""Returns the embedder of a tenant's index, None where it needs none. Raises NotFoundError where there is no such
index, and InputError where it cannot be searched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewStage:
    """A stage to create."""

    kind: StageKind
    model: str | None
    endpoint: str
    lines: NewFile


class Asking:
    """Receives the lines of an input in order and writes queries for those that want passages; changes no line."""

    def __init__(
        self,
        storage: Storage,
        closing: ExitStack,
        *,
        batch_id: str,
        tenant_id: str,
        embedded: Sequence[RetrievalStage],
        embedder_of: EmbedderOf,
        settings: Settings,
    ) -> None:
        """Writing is complete once `closing` is closed; `embedded` are the embedding stages so far."""
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
        """By embedding model, None for the lookup of passages; each with the key of its object."""

    def skip(self, raw: RawLine) -> None:
        """Pass over a line that is not run."""

    def fill(self, line: InputLine, raw: RawLine, context: ContextRequest | None) -> Line:
        """Return the line unchanged."""
        if context is not None:
            embedder = self._embedder(context.index) if context.query.strip() else _EMPTY
            if embedder is None or isinstance(embedder, StageError):
                self._find(line, context, embedder)
            elif self._is_embedded:
                self._find(line, context, self._vector_of(line, embedder))
            else:
                self._embed(line, context, embedder)
        return raw, line.body

    def stages(self) -> list[NewStage]:
        """Return the stages to create, once written: all embeddings come before the lookup."""
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
            except NotFoundError as error:
                self._embedders[index] = StageError(code=INDEX_NOT_FOUND, message=error.message)
            except InputError as error:
                self._embedders[index] = StageError(code=error.code or INDEX_NOT_FOUND, message=error.message)
        return self._embedders[index]

    def _vector_of(self, line: InputLine, embedder: Embedder) -> str | StageError:
        results = self._vectors.get(embedder.model)
        if results is None:
            return StageError(code=UNAVAILABLE, message=f"its query was not embedded by {embedder.model}")
        answer = results.take(line.custom_id)
        return answer if isinstance(answer, StageError) else str(answer["data"][0]["embedding"])

    def _embed(self, line: InputLine, context: ContextRequest, embedder: Embedder) -> None:
        text = embedder.query_prefix + context.query
        body: dict[str, Any] = {"model": embedder.model, "input": text, "encoding_format": Encoding.BASE64}
        if context.truncate and embedder.may_cut(text):
            body["truncate"] = True
        self._write(embedder.model, line, EMBEDDING_ENDPOINT, body)

    def _find(self, line: InputLine, context: ContextRequest, vector: str | StageError | None) -> None:
        if isinstance(vector, StageError):
            body = find_body(context, error={"code": vector.code, "message": vector.message})
        else:
            body = find_body(context, vector=vector)
        self._write(None, line, FIND_ENDPOINT, body)

    def _write(self, model: str | None, line: InputLine, endpoint: str, body: Mapping[str, Any]) -> None:
        if model not in self._writers:
            key = files.new_object_key(self._tenant_id)
            opened = self._closing.enter_context(open_input(self._storage, key, settings=self._settings))
            self._writers[model] = key, opened
        request = {"custom_id": line.custom_id, "method": "POST", "url": endpoint, "body": body}
        self._writers[model][1].write(orjson.dumps(request))
