"""Write the inputs of the next lookups: queries to embed, or passages to find.

Their objects are not referenced by any row yet; unused ones are swept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import orjson

from features.documents.collections.embedders import Embedder
from features.retrieval.fills.results import INDEX_NOT_FOUND, Answers, NoAnswer
from jobs import files
from jobs.batches.made_inputs import InputWriter, open_input
from jobs.errors import InputError, NotFoundError
from jobs.files import NewFile
from jobs.lines.body_context import ContextRequest
from jobs.lines.embedding_bodies import EMBEDDING_ENDPOINT, Encoding
from jobs.lines.filled_lines import UNAVAILABLE
from jobs.lines.passage_bodies import FIND_ENDPOINT, find_body
from jobs.lines.reading import InputLine
from jobs.settings import Settings
from jobs.storage import Storage
from jobs.tables import Batch

_EMPTY = NoAnswer(code="empty_query", message="the query of its context has no word")


class Lookup(StrEnum):
    """The name of a node, and of its batch's stage."""

    EMBED = "embed"  # queries become vectors
    FIND = "find"  # passages are found for them


@dataclass(frozen=True, slots=True, kw_only=True)
class NewLookup:
    """A node to begin."""

    lookup: Lookup
    model: str | None
    """The embedding model; None for the search, which needs none."""
    endpoint: str
    lines: NewFile

    @property
    def num_lines(self) -> int:
        assert self.lines.estimate is not None, "it is the input of a batch"
        return self.lines.estimate.num_requests


class Asking:
    """Receives the lines of an input that want passages, in order, and writes their queries."""

    def __init__(
        self,
        storage: Storage,
        batch: Batch,
        *,
        embedded: Mapping[str, Answers] | None,
        embedder_of: Callable[[str], Embedder | None],
        settings: Settings,
    ) -> None:
        """`embedded` are the answers of embedding models, by model; None where none was asked yet."""
        self._storage = storage
        self._batch = batch
        self._settings = settings
        self._embedder_of = embedder_of
        self._embedders: dict[str, Embedder | NoAnswer | None] = {}
        self._embedded = embedded
        self._closing = ExitStack()
        self._writers: dict[str | None, tuple[str, InputWriter]] = {}
        """By embedding model, None for the search; each with the key of its object."""

    @contextmanager
    def written(self) -> Iterator[None]:
        """Complete the objects when the block ends; none appears where it raises."""
        with self._closing:
            yield

    def ask(self, line: InputLine, context: ContextRequest) -> None:
        """Write the query of a line."""
        embedder = self._embedder(context.index) if context.query.strip() else _EMPTY
        if embedder is None or isinstance(embedder, NoAnswer):
            self._find(line, context, embedder)
        elif self._embedded is None:
            self._embed(line, context, embedder)
        else:
            self._find(line, context, self._vector_of(line, embedder, self._embedded))

    def lookups(self) -> list[NewLookup]:
        """Return the nodes to begin, once written: all queries are embedded before the search."""
        models = [model for model in self._writers if model is not None]
        return [self._lookup(model) for model in models or self._writers]

    def unused_keys(self) -> list[str]:
        """Return the objects, once written, that will be written again."""
        return [self._writers[None][0]] if None in self._writers and len(self._writers) > 1 else []

    def _lookup(self, model: str | None) -> NewLookup:
        lookup, endpoint = (Lookup.FIND, FIND_ENDPOINT) if model is None else (Lookup.EMBED, EMBEDDING_ENDPOINT)
        key, writer = self._writers[model]
        lines = writer.new_file(key, filename=f"{self._batch.id}_{lookup}.jsonl")
        return NewLookup(lookup=lookup, model=model, endpoint=endpoint, lines=lines)

    def _embedder(self, index: str) -> Embedder | NoAnswer | None:
        if index not in self._embedders:
            try:
                self._embedders[index] = self._embedder_of(index)
            except NotFoundError as error:
                self._embedders[index] = NoAnswer(code=INDEX_NOT_FOUND, message=error.message)
            except InputError as error:
                self._embedders[index] = NoAnswer(code=error.code or INDEX_NOT_FOUND, message=error.message)
        return self._embedders[index]

    def _vector_of(self, line: InputLine, embedder: Embedder, embedded: Mapping[str, Answers]) -> str | NoAnswer:
        answers = embedded.get(embedder.model)
        if answers is None:
            return NoAnswer(code=UNAVAILABLE, message=f"its query was not embedded by {embedder.model}")
        answer = answers.take(line.custom_id)
        return answer if isinstance(answer, NoAnswer) else str(answer["data"][0]["embedding"])

    def _embed(self, line: InputLine, context: ContextRequest, embedder: Embedder) -> None:
        text = embedder.query_prefix + context.query
        body: dict[str, Any] = {"model": embedder.model, "input": text, "encoding_format": Encoding.BASE64}
        if context.truncate and embedder.may_cut(text):
            body["truncate"] = True
        self._write(embedder.model, line, EMBEDDING_ENDPOINT, body)

    def _find(self, line: InputLine, context: ContextRequest, vector: str | NoAnswer | None) -> None:
        if isinstance(vector, NoAnswer):
            body = find_body(context, error={"code": vector.code, "message": vector.message})
        else:
            body = find_body(context, vector=vector)
        self._write(None, line, FIND_ENDPOINT, body)

    def _write(self, model: str | None, line: InputLine, endpoint: str, body: Mapping[str, Any]) -> None:
        if model not in self._writers:
            key = files.new_object_key(self._batch.tenant_id)
            opened = self._closing.enter_context(open_input(self._storage, key, settings=self._settings))
            self._writers[model] = key, opened
        request = {"custom_id": line.custom_id, "method": "POST", "url": endpoint, "body": body}
        self._writers[model][1].write(orjson.dumps(request))
