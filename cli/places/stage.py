"""A batch of a job as files: its lines, their results, and results of earlier batches that did not complete."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cli.places.run_folder import RunFolder
from cli.submitting.results import ResultFiles

__all__ = ["ResultFiles", "Stage"]

_CHAT = "/v1/chat/completions"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Lines and the files of their results; everything else about them is in the folder of a run."""

    run: RunFolder
    lines: Path
    results: ResultFiles
    endpoint: str = _CHAT

    @classmethod
    def within(cls, run: RunFolder) -> Stage:
        """Return the stage whose lines and results are in the folder too."""
        results = ResultFiles(answers=run.root / "answers.jsonl")
        return cls(run=run, lines=run.root / "input.jsonl", results=results)

    @property
    def kept(self) -> ResultFiles:
        """Return the results of batches that did not complete."""
        return ResultFiles(answers=self.run.root / "kept.jsonl")

    @property
    def latest(self) -> ResultFiles:
        """Return the results of the last batch, before they are merged with the kept ones."""
        return ResultFiles(answers=self.run.root / "latest.jsonl")

    @property
    def rest(self) -> Path:
        """Return the file of lines without a result in `kept`."""
        return self.run.root / "rest.jsonl"

    @property
    def is_begun(self) -> bool:
        """Return whether an earlier start has sent lines."""
        return self.run.read().file_id is not None

    @property
    def is_done(self) -> bool:
        return self.run.has_written([self.results.answers])

    def forget_batches(self) -> None:
        """Delete intermediate files once the results are complete."""
        self.kept.remove()
        self.latest.remove()
        self.rest.unlink(missing_ok=True)

    def forget(self) -> None:
        """Delete all files of the stage, lines and results included."""
        self.forget_batches()
        self.results.remove()
        self.lines.unlink(missing_ok=True)
