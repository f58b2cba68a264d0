"""`--dry-run`: the prompt of one document, and the tokens of each pass over all documents, which are read here."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any

from cli.client import server_errors_as_sentences
from cli.estimating.estimate import Estimate, estimated
from cli.extracting.reading import read_documents
from cli.extracting.screen import print_prompt
from cli.service.local import LocalTarget
from cli.service.remote import RemoteTarget
from cli.service.service import Target
from cli.table import print_fields
from engine.errors import EngineError
from engine.models.config import load_model_config
from features.documents.extraction.course.job import ExtractJob
from features.documents.extraction.errors import DocumentError
from features.documents.extraction.passes.excerpts import Window, likely_tokens
from jobs.errors import InputError

_AGAIN_OF_WHOLE, _AGAIN_IN_PARTS = 0.1, 0.5
"""Tokens of further questions per token of the first ones, for prompts with whole documents and with parts: 0.03 to 0.2
and 0.3 to 0.9 for the demo model (docs/extraction.md)."""
_FURTHER = "further questions"
_OPEN_END = "; plus halves of truncated answers"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Questions:
    """The questions of all documents that can be read, as files of lines."""

    first: Path
    second_reading: Path
    num_first: int
    num_in_parts: int
    """First questions that show only parts of their document."""


def show_dry_run(job: ExtractJob, target: Target, paths: Sequence[Path]) -> None:
    """Print the prompt of the first readable document, and an estimate for all documents. Raises InputError."""
    job = replace(job, window=_window_of(target))
    with tempfile.TemporaryDirectory(prefix="tokenmill-") as folder:
        questions = _written(job, paths, Path(folder))
        print_prompt(questions.first)
        print_fields({"documents": f"{len(paths):,}"} | _estimates(job, target, questions))


def _window_of(target: Target) -> Window | None:
    """Return the window of a model as a service has it; None if its context is not known."""
    max_tokens = _context_of(target)
    return None if max_tokens is None else Window(max_tokens=max_tokens, count=likely_tokens)


def _context_of(target: Target) -> int | None:
    """Return the context of the model in tokens, prompt and answer together; None if not known."""
    if isinstance(target, RemoteTarget):
        with server_errors_as_sentences(target.client):
            served: Any = target.client.models.retrieve(target.model)
        context: int | None = getattr(served, "max_model_len", None)  # None without a worker
        return context
    assert isinstance(target, LocalTarget)
    try:
        return load_model_config(target.served.path).max_model_len
    except EngineError:
        return None  # the stack reports why it cannot be loaded


def _written(job: ExtractJob, paths: Sequence[Path], folder: Path) -> _Questions:
    """Write the questions. Raises InputError, with the first error, if no document can be read."""
    first, second_reading = folder / "first.jsonl", folder / "second_reading.jsonl"
    num_first = num_in_parts = 0
    problem: DocumentError | None = None
    with ExitStack() as closing:
        first_file, second_file = (closing.enter_context(path.open("wb")) for path in (first, second_reading))
        for number, document in enumerate(read_documents(paths)):
            if isinstance(document, DocumentError):
                problem = problem or document
                continue
            showing = job.showing(document)
            for group in range(len(job.groups)):
                excerpt = job.excerpt(group, showing)
                num_first += 1
                num_in_parts += excerpt is not showing.whole
                first_file.write(job.line(number, group, job.first_request(group, excerpt.layout.text)))
                second = job.second_request(group, excerpt.layout.text) if job.passes.second_reading else None
                if second is not None:
                    second_file.write(job.line(number, group, second))
    if problem is not None and not num_first:
        raise InputError(f"no document could be read; the first: {problem.message} ({problem.code})")
    return _Questions(first=first, second_reading=second_reading, num_first=num_first, num_in_parts=num_in_parts)


def _estimates(job: ExtractJob, target: Target, questions: _Questions) -> dict[str, str]:
    """Return the estimates of all passes as fields to show."""
    first, fields = estimated(target, questions.first)
    passes = {"first questions": first}
    if questions.second_reading.stat().st_size:
        passes["second reading"], _ = estimated(target, questions.second_reading)
    # One more round of all questions has at most a full context each.
    most = None if job.window is None else first.num_lines * job.window.max_tokens
    if job.passes.cover:
        passes["covered"] = first.share(1.0, most_tokens=most)  # a cover may have more tokens than the value
    if job.passes.again:
        in_parts = questions.num_in_parts / questions.num_first
        share = _AGAIN_OF_WHOLE + in_parts * (_AGAIN_IN_PARTS - _AGAIN_OF_WHOLE)
        passes[_FURTHER] = first.share(share, most_tokens=most)
    total = reduce(Estimate.plus, passes.values()).shown()
    likely = {name: one.likely() for name, one in passes.items()}
    return {**fields, **likely, "tokens": total + (_OPEN_END if job.passes.again else "")}
