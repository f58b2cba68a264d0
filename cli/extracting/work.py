"""The files of an extraction, from which the same command resumes.

context.json             the model's context in tokens when the run began, which determines excerpts
documents.jsonl          each file with its digest, or why it could not be read
first/ second_reading/ again/ again-2/ … covered/
                         a batch each: input.jsonl, answers.jsonl, answers.errors.jsonl
stack/                   the data of the stack of its own, while it is unfinished
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import count, takewhile
from pathlib import Path
from typing import BinaryIO

import orjson

from cli.disk.download import replacing
from cli.extracting.prepared import ParseCache, Prepared, name_of, prepare
from cli.places.run_folder import RunFolder, sha256_of
from cli.places.stage import Stage
from features.documents.extraction.course.job import ExtractJob


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractFolder:
    """The files of one job, below the folder of its run."""

    run: RunFolder
    cache: ParseCache

    @property
    def first(self) -> Stage:
        return self._stage("first")

    @property
    def second_reading(self) -> Stage:
        return self._stage("second_reading")

    def again(self, number: int) -> Stage:
        """Return the stage of one round of further questions, from 1."""
        return self._stage("again" if number == 1 else f"again-{number}")

    def rounds(self) -> list[Stage]:
        """Return the rounds whose lines exist."""
        rounds = takewhile(lambda stage: stage.lines.exists(), map(self.again, count(1)))
        return list(rounds)

    @property
    def covered(self) -> Stage:
        return self._stage("covered")

    def _stage(self, name: str) -> Stage:
        """Return a stage with its own state."""
        return Stage.within(RunFolder(key=f"{self.run.key}-{name}", root=self.run.root / name))

    @property
    def note(self) -> Path:
        return self.run.root / "documents.jsonl"

    @property
    def context_note(self) -> Path:
        return self.run.root / "context.json"

    def context(self, ask: Callable[[], int | None]) -> int | None:
        """Return the context that the first start got; the first start asks."""
        if not self.context_note.exists():
            self.run.root.mkdir(parents=True, exist_ok=True)
            with replacing(self.context_note) as file:
                file.write(orjson.dumps(ask()))
        context: int | None = orjson.loads(self.context_note.read_bytes())
        return context

    def prepare(self, files: Sequence[Path], *, on_each: Callable[[], None]) -> None:
        """Parse all files and store the results, unless an earlier start did."""
        if self.note.exists():
            return
        self.run.root.mkdir(parents=True, exist_ok=True)
        with replacing(self.note) as file:
            for one in prepare(files, self.cache, on_each=on_each):
                file.write(orjson.dumps(asdict(one)) + b"\n")

    def prepared(self) -> Iterator[tuple[int, Prepared]]:
        """Yield every document with its number, from 0."""
        with self.note.open("rb") as file:
            for number, line in enumerate(file):
                yield number, Prepared(**orjson.loads(line))

    @contextmanager
    def writing(self, stage: Stage) -> Iterator[BinaryIO]:
        """Write the lines of a stage atomically."""
        stage.run.root.mkdir(parents=True, exist_ok=True)
        with replacing(stage.lines) as file:
            yield file

    def is_done(self, outputs: Sequence[Path]) -> bool:
        """Return whether an earlier start has written the outputs, and they are unchanged."""
        return self.run.has_written(outputs)

    def finish(self, outputs: Sequence[Path], *, num_done: int, failed: Mapping[str, int]) -> None:
        """Store the outputs and the tally, and free the disk."""
        digests = {str(path.absolute()): sha256_of(path) for path in outputs}
        self.run.write(replace(self.run.read(), outputs=digests, num_answered=num_done, failed=dict(failed)))
        self.free_disk()

    def free_disk(self) -> None:
        """Delete all but the state of the outputs, the last stage first, so that a kill leaves a resumable run."""
        # By name: an earlier kill may have left a round without its predecessor.
        rounds = sorted(self.run.root.glob("again*"), key=lambda path: (len(path.name), path.name), reverse=True)
        for root in (self.covered.run.root, *rounds, self.second_reading.run.root, self.first.run.root):
            shutil.rmtree(root, ignore_errors=True)
        self.run.forget_stack()
        for note in (self.note, self.context_note):
            note.unlink(missing_ok=True)


def folder_of(
    job: ExtractJob, files: Sequence[Path], *, place: str, base: Path, outputs: Sequence[Path]
) -> ExtractFolder:
    """Return the folder of a job over these documents, for a place, outputs and the version of the parsers."""
    cache = ParseCache.below(base)
    named = [f"{name_of(path)} {sha256_of(path)}" for path in files]
    key = job.identity(place, repr(job.passes), cache.version, *(name_of(path.absolute()) for path in outputs), *named)
    return ExtractFolder(run=RunFolder.below(base, key), cache=cache)
