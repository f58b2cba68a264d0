"""The lines of an extraction's batches and the results of earlier stages, read under its claim."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cached_property
from itertools import islice

from features.documents import questions
from features.documents.claims import ExtractionWork
from features.documents.collections import corpora, documents
from features.documents.collections.embedders import EmbedderOf
from features.documents.collections.snapshot import KeptDocument, encoded, kept_documents
from features.documents.examples import Examples
from features.documents.extraction.course.corpus import Corpus
from features.documents.extraction.passes.examples import Example
from features.documents.progress import DocumentProgress, Progress, StageFiles
from features.documents.questions import GroundingKeys
from features.documents.stages import DocumentStage, stage_of
from features.documents.standing import Standing
from features.documents.tables import Extraction, ExtractionNode
from jobs import files
from jobs.errors import ConflictError, InputError, NotFoundError
from jobs.files import NewFile, Purpose
from jobs.settings import Settings
from jobs.storage import Storage

_ROWS_A_LOOK = 1000
_LATER_QUESTIONS = {
    DocumentStage.ASK_AGAIN: questions.again_questions,
    DocumentStage.ASK_COVERED: questions.covered_questions,
}
_GROUNDINGS = {
    DocumentStage.GROUND: questions.groundings,
    DocumentStage.GROUND_AGAIN: questions.again_groundings,
    DocumentStage.GROUND_COVERED: questions.covered_groundings,
}


class ExtractionFailedError(InputError):
    """An extraction cannot continue; the message is the reason."""


class StageLines:
    """The lines of an extraction's next stage, and the answers of earlier stages."""

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

    def keep(self, stage: DocumentStage) -> dict[str, NewFile]:
        """Write the objects to keep when a stage begins, by the column that will name them.

        At the first stage these are the current documents and the plan; the plan again once its examples have texts.
        """
        extraction = self._standing.flow
        if stage is DocumentStage.READ:
            corpus = self._standing.plan.corpus
            of_index = [] if corpus is None else [KeptDocument.of_index(corpus)]
            kept = encoded(of_index or self._documents(extraction.collection_id))
            return {"documents_file_id": self._kept("documents.jsonl", kept), "plan_file_id": self._kept_plan()}
        if stage is DocumentStage.ASK and self._standing.plan.examples_of is not None and self._is_asked:
            return {"plan_file_id": self._kept_plan()}
        return {}

    def lines(self, stage: DocumentStage, *, documents_key: str | None) -> Iterable[bytes]:
        """Return the lines of a stage; `documents_key` is the object of the documents if they were just written."""
        corpus = self._standing.plan.corpus
        if documents_key is not None:
            kept = kept_documents(self._storage, documents_key)
            return (document.read_line(number) for number, document in kept if not document.is_index)
        if self._is_empty(stage):
            return ()
        progress, job = self.progress(), self._standing.job
        if stage is DocumentStage.ASK and corpus is not None:
            return corpora.questions(job, corpus, may_cut=self._may_cut(corpus))
        if stage is DocumentStage.ASK:
            job = replace(job, examples=self._examples)
            most = self._settings.max_line_bytes
            return questions.first_questions(progress, job, self._storage, max_line_bytes=most)
        if stage in _LATER_QUESTIONS:
            # Questions beyond a batch's limit are dropped from the round: the record notes what was not answered.
            return islice(_LATER_QUESTIONS[stage](progress, job), self._settings.max_batch_lines)
        plan_key = self._kept_key(self._standing.flow.plan_file_id)
        return _GROUNDINGS[stage](
            progress, GroundingKeys(plan=plan_key, found=None if corpus is None else self._found_key())
        )

    def progress(self) -> Iterator[DocumentProgress]:
        """Yield each document with its results so far."""
        documents_key = self._kept_key(self._standing.flow.documents_file_id)
        stages = [(stage_of(stage), self._files_of(stage)) for stage in self._standing.begun]
        num_groups, not_asked = len(self._standing.job.groups), self._standing.not_asked
        for one in Progress(
            self._storage, documents_key, stages, num_groups=num_groups, not_asked=not_asked
        ).documents():
            self._work.check()
            yield one

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
        batch_id = next(stage.batch_id for stage in self._standing.begun if stage_of(stage) is DocumentStage.ASK)
        if batch_id is None:
            return None
        with self._work.reading() as session:
            return corpora.found_key(session, batch_id)

    def _is_empty(self, stage: DocumentStage) -> bool:
        """Tell whether the stage has no lines: the model may not be asked any more, or the last round asked nothing."""
        if stage is DocumentStage.GROUND_AGAIN:
            return not self._standing.begun[-1].num_lines
        return stage in (DocumentStage.ASK, DocumentStage.ASK_AGAIN, DocumentStage.ASK_COVERED) and not self._is_asked

    @property
    def _is_asked(self) -> bool:
        """Tell whether the model may still be asked."""
        return self._standing.early_end is None

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

    def _documents(self, collection_id: str) -> Iterator[KeptDocument]:
        after = -1
        while True:
            with self._work.reading() as session:
                rows = documents.iter_documents(session, collection_id, after=after, limit=_ROWS_A_LOOK)
            if not rows:
                return
            yield from map(KeptDocument.of, rows)
            after = rows[-1].number

    def _files_of(self, stage: ExtractionNode) -> StageFiles:
        if stage.batch_id is None:
            return StageFiles()
        batch = self._standing.batches[stage.batch_id]
        keys = [
            None if file_id is None else self._kept_key(file_id)
            for file_id in (batch.output_file_id, batch.error_file_id)
        ]
        return StageFiles(output_key=keys[0], errors_key=keys[1])

    def _kept_key(self, file_id: str | None) -> str:
        """Return the object of a file. Raises ExtractionFailedError if it was deleted."""
        assert file_id is not None, "its stage is done"
        with self._work.reading() as session:
            extraction = session.get_one(Extraction, self._work.claim.id)
            file = files.find_kept(session, extraction.tenant_id, file_id)
        if file is None:
            raise ExtractionFailedError(
                f"the file {file_id!r} of this extraction was deleted or has expired; create the extraction again"
            )
        return file.object_key
