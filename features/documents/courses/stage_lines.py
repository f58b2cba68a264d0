"""What the lines of an extraction are made of, read under its claim: its plan, examples, texts and objects."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cached_property

from features.documents.claims import ExtractionWork
from features.documents.collections import corpora, documents
from features.documents.collections.embedders import EmbedderOf
from features.documents.collections.snapshot import KeptDocument, encoded
from features.documents.courses import questions
from features.documents.courses.next_steps import NextSteps
from features.documents.courses.questions import GroundingKeys
from features.documents.examples import Examples
from features.documents.extraction.course.corpus import Corpus
from features.documents.extraction.course.job import ExtractJob
from features.documents.extraction.passes.examples import Example
from features.documents.progress import DocumentProgress
from features.documents.stages import DocumentStage, node_number
from features.documents.standing import Standing
from features.documents.tables import Extraction
from jobs import files
from jobs.errors import ConflictError, InputError, NotFoundError
from jobs.files import NewFile, Purpose
from jobs.settings import Settings
from jobs.storage import Storage

_ROWS_A_LOOK = 1000


class ExtractionFailedError(InputError):
    """An extraction cannot continue; the message is the reason."""


class StageLines:
    """The lines about an extraction's documents."""

    def __init__(
        self,
        work: ExtractionWork,
        standing: Standing,
        storage: Storage,
        settings: Settings,
        *,
        embedder_of: EmbedderOf,
    ) -> None:
        self._work = work
        self._standing = standing
        self._storage = storage
        self._settings = settings
        self._embedder_of = embedder_of

    def documents(self) -> Iterator[KeptDocument]:
        """Yield the current documents, or the index that is asked as one."""
        corpus = self._standing.plan.corpus
        return iter([KeptDocument.of_index(corpus)]) if corpus is not None else self._of_collection()

    def keep(self, stage: DocumentStage) -> dict[str, NewFile]:
        """Write the objects to keep when a stage begins, by the column that will name them.

        At the first stage these are the current documents and the plan; the plan again once its examples have texts.
        """
        if stage is DocumentStage.READ:
            kept = encoded(self.documents())
            return {"documents_file_id": self._kept("documents.jsonl", kept), "plan_file_id": self._kept_plan()}
        if stage is DocumentStage.ASK and self._standing.plan.examples_of is not None:
            return {"plan_file_id": self._kept_plan()}
        return {}

    def steps(self) -> NextSteps:
        """Return the next steps of documents as things stand."""
        standing, corpus = self._standing, self._standing.plan.corpus
        is_asked = standing.node(node_number(DocumentStage.ASK)) is not None
        found = self._found_key() if corpus is not None and is_asked else None
        return NextSteps(
            job=standing.job,
            keys=GroundingKeys(plan=self.key_of(standing.flow.plan_file_id), found=found),
            first_questions=self._first_questions,
            may_ask=standing.early_end is None,
            has_room=standing.flow.early_end is None,
        )

    def _first_questions(self, one: DocumentProgress) -> list[bytes]:
        corpus = self._standing.plan.corpus
        if corpus is not None:
            return list(corpora.questions(self._standing.job, corpus, may_cut=self._may_cut(corpus)))
        return questions.first_questions(
            one, self._job_with_examples, self._storage, max_line_bytes=self._settings.max_line_bytes
        )

    @cached_property
    def _job_with_examples(self) -> ExtractJob:
        return replace(self._standing.job, examples=self._examples)

    def _may_cut(self, corpus: Corpus) -> Callable[[str], bool]:
        """Return a function that tells whether an index's model may not read all of a query."""
        try:
            with self._work.reading() as session:
                embedder = self._embedder_of(session, self._standing.flow.tenant_id, corpus.index_id)
        except (NotFoundError, ConflictError):  # the batch reports it for each line
            embedder = None
        if embedder is None:
            return lambda _query: False
        return lambda query: embedder.may_cut(embedder.query_prefix + query)

    def _found_key(self) -> str | None:
        """Return the object with the passages found for the questions of an index."""
        node = self._standing.node(node_number(DocumentStage.ASK))
        if node is None or node.batch_id is None:
            return None
        with self._work.reading() as session:
            return corpora.found_key(session, node.batch_id)

    @cached_property
    def _examples(self) -> tuple[Example, ...]:
        extraction, source = self._standing.flow, self._standing.plan.examples_of
        if source is None:
            return ()
        examples = Examples(
            reading=self._work.reading,
            storage=self._storage,
            tenant_id=extraction.tenant_id,
            collection_id=extraction.collection_id,
            source=source,
            checked=self._work.checked,
        )
        return examples.read(self._standing.job)

    def _kept_plan(self) -> NewFile:
        has_texts = bool(self._standing.begun)
        plan = replace(self._standing.plan, examples=self._examples if has_texts else ())
        return self._kept("plan.json", [plan.to_bytes()])

    def _kept(self, name: str, content: Iterable[bytes]) -> NewFile:
        extraction = self._standing.flow
        object_key = files.new_object_key(extraction.tenant_id)
        return NewFile(
            object_key=object_key,
            filename=f"{extraction.id}_{name}",
            purpose=Purpose.USER_DATA,
            size_bytes=self._storage.put(object_key, content),
            expires_after_seconds=files.MAX_EXPIRY_SECONDS,
        )

    def _of_collection(self) -> Iterator[KeptDocument]:
        after = -1
        while True:
            with self._work.reading() as session:
                rows = documents.iter_documents(
                    session, self._standing.flow.collection_id, after=after, limit=_ROWS_A_LOOK
                )
            if not rows:
                return
            yield from map(KeptDocument.of, rows)
            after = rows[-1].number

    def key_of(self, file_id: str | None) -> str:
        """Return the object of a file. Raises ExtractionFailedError if it was deleted."""
        assert file_id is not None, "its first stage has begun"
        with self._work.reading() as session:
            extraction = session.get_one(Extraction, self._work.claim.id)
            file = files.find_kept(session, extraction.tenant_id, file_id)
        if file is None:
            raise ExtractionFailedError(
                f"the file {file_id!r} of this extraction was deleted or has expired; create the extraction again"
            )
        return file.object_key
