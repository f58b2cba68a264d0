"""Questions to a whole index: each shows the passages found for its fields.

Each is a line with a `context` to retrieve (`features.retrieval.fills`), so searching the index and embedding the
queries work and are billed as for any other line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sqlalchemy.orm import Session

from features.documents.extraction.course.corpus import Corpus
from features.documents.extraction.course.job import ExtractJob
from features.documents.extraction.passes.excerpts import words_of
from flows.serving import serving_batches
from jobs import files
from jobs.errors import InputError
from jobs.lines.body_context import PLACEHOLDER, TOKENS_AROUND
from jobs.lines.passage_bodies import FIND_ENDPOINT


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedIndex:
    """An index that is ready to be asked."""

    id: str
    collection_id: str
    """The collection that it was built from."""
    name: str
    passage_tokens: int

    def corpus(self, *, top_k: int) -> Corpus:
        return Corpus(index_id=self.id, name=self.name, passage_tokens=self.passage_tokens, top_k=top_k)


FindIndex = Callable[[Session, str, str], AskedIndex]
"""Returns an index of a tenant by its id. Raises InputError if it cannot be asked."""


def questions(job: ExtractJob, corpus: Corpus, *, may_cut: Callable[[str], bool]) -> Iterator[bytes]:
    """Yield the line of each group of fields. Raises InputError if a question leaves no room for a passage.

    `may_cut` tells whether the index's model may read only the beginning of a query. Only such a line sets `truncate`.
    """
    for group in range(len(job.groups)):
        request = job.first_request(group, PLACEHOLDER)
        top_k, max_tokens = _limits(job, corpus, group)
        # The word search uses the whole query; an embedder may cut it, so names come before descriptions.
        query = words_of(job.groups[group])
        context = {"index": corpus.index_id, "query": query, "max_tokens": max_tokens, "top_k": top_k}
        cut = {"truncate": True} if may_cut(query) else {}
        yield job.line(0, group, request, context=context | cut).rstrip(b"\n")


def found_key(session: Session, batch_id: str) -> str | None:
    """Return the object with the passages of each line of a batch; None if there is none, or it was deleted."""
    lookups = [
        batch for batch in serving_batches(session, [batch_id]).get(batch_id, ()) if batch.endpoint == FIND_ENDPOINT
    ]
    if not lookups or lookups[0].output_file_id is None:
        return None
    file = files.find_kept(session, lookups[0].tenant_id, lookups[0].output_file_id)
    return None if file is None else file.object_key


def _limits(job: ExtractJob, corpus: Corpus, group: int) -> tuple[int, int]:
    """Return how many passages a question may be shown, and their maximum number of tokens together.

    With little room there are fewer: the text around a passage takes tokens, and most passages have half the maximum.
    """
    most, room = corpus.top_k * corpus.passage_tokens, job.room(group)
    if room is None:
        return corpus.top_k, most
    top_k = max(1, min(corpus.top_k, room // (corpus.passage_tokens // 2 + TOKENS_AROUND)))
    left = room - top_k * TOKENS_AROUND
    if left < corpus.passage_tokens:
        assert job.window is not None, "there is a limit"
        raise InputError(
            f"The model {job.model!r} takes {job.window.max_tokens:,} tokens. The question for "
            f"{job.groups[group].leaves[0].name!r} and an answer of {job.params['max_tokens']:,} leave no room for "
            f"a passage of the index, which may have {corpus.passage_tokens:,} (two bytes are a token). Lower "
            "max_tokens, choose a model with a longer context, or build an index with a lower max_tokens.",
            param="max_tokens",
            code="context_length_exceeded",
        )
    return top_k, min(left, most)
