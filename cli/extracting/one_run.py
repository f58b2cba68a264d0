"""One run of `tokenmill extract`: from documents to outputs, or to a prompt and an estimate."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from cli.extracting.foretelling import foretold
from cli.extracting.outputs import MostDoubtful, Outputs, write_outputs, write_report
from cli.extracting.running import Tally, records, run_batches, write_first
from cli.extracting.screen import noting, print_examples, print_prompt, reading_progress
from cli.extracting.windows import context_of, window_of
from cli.extracting.work import ExtractFolder, folder_of
from cli.places.session import Place, session_at
from cli.service.options import say
from cli.table import print_fields
from features.documents.extraction.course.job import ExtractJob
from jobs.errors import InputError


def run(job: ExtractJob, place: Place, folder: ExtractFolder, files: list[Path], *, outputs: Outputs) -> Tally:
    """Read the documents, run the batches, and write the outputs; return the tally."""
    with reading_progress(len(files)) as on_each:
        folder.prepare(files, on_each=on_each)
    job = _with_window(job, place, folder)
    with session_at(place, folder.run, say=say) as session:
        run_batches(job, folder, session)
    tally, doubtful = Tally(), MostDoubtful()
    shown: list[dict[str, Any]] = []
    passing = doubtful.passing(noting(tally.passing(records(job, folder)), shown))
    write_outputs(passing, outputs, schema=job.schema)
    if outputs.report is not None:
        write_report(doubtful, outputs.report, cache=folder.cache)
    folder.finish(outputs.paths, num_done=tally.num_done, failed=tally.codes)
    print_examples(shown)
    say(f"written to {' and '.join(map(str, outputs.paths))}")
    return tally


def show(job: ExtractJob, place: Place, files: list[Path]) -> None:
    """Print the prompt of the first readable document, and an estimate for all documents."""
    with tempfile.TemporaryDirectory(prefix="tokenmill-") as base:
        folder = folder_of(job, files, place=place.name, base=Path(base), outputs=[])
        folder.prepare(files, on_each=lambda: None)
        job = _with_window(job, place, folder)
        if not write_first(job, folder):
            raise InputError(
                f"no document could be read; the error of the first is: {next(folder.prepared())[1].error}"
            )
        print_prompt(folder.first.lines)
        print_fields({"documents": f"{len(files):,}"} | foretold(job, place, folder))


def _with_window(job: ExtractJob, place: Place, folder: ExtractFolder) -> ExtractJob:
    max_tokens = folder.context(lambda: context_of(place))
    return replace(job, window=window_of(place, max_tokens=max_tokens))
