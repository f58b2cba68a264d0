"""The batches of an extraction and its records: first questions, second reading, further questions, covered values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count, islice, takewhile
from pathlib import Path
from typing import Any, Self

from cli.extracting.prepared import Prepared
from cli.extracting.results import Results
from cli.extracting.work import ExtractFolder
from cli.places.session import Place, Session
from cli.places.stage import Stage
from features.documents.extraction.course.document import again_requests, covered_requests, record_of
from features.documents.extraction.course.job import ExtractJob, custom_id
from features.documents.extraction.course.line_results import Answers, LineResult, usage_of
from features.documents.extraction.passes.excerpts import Showing
from features.documents.extraction.passes.prompts import Request
from features.documents.extraction.scoring.records import failed_record
from jobs.errors import ServiceError
from jobs.settings import load_settings

_Requests = Callable[[ExtractJob, Showing, Answers], Mapping[int, Request] | Mapping[str, Request]]


@dataclass(slots=True)
class Tally:
    """Counts over documents and values, updated as records pass."""

    num_done: int = 0
    codes: Counter[str] = field(default_factory=Counter)
    """Failed documents by code."""
    groundings: Counter[str] = field(default_factory=Counter)
    """Values that must be in their document, by kind of match."""
    num_noted: int = 0
    """Documents with notes about parsing or questions."""
    num_to_review: int = 0
    """Values, including null, that need review."""
    num_withheld: int = 0
    """Values set to null because the answer is not in the document."""
    usage: Counter[str] = field(default_factory=Counter)

    def passing(self, records: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for one in records:
            if one["error"] is None:
                self.num_done += 1
            else:
                self.codes[one["error"]["code"]] += 1
            self.groundings.update(each["grounding"] for each in one["evidence"] if "status" in each["features"])
            self.usage.update(one["usage"])
            self.num_noted += bool(one.get("notes"))  # missing on an older server
            self.num_to_review += sum(each["review"] for each in one["evidence"])
            self.num_withheld += sum("answer" in each for each in one["evidence"])
            yield one


def written_before(folder: ExtractFolder, outputs: Sequence[Path]) -> Tally | None:
    """Return the tally of an earlier start, if its outputs are unchanged."""
    if not folder.is_done(outputs):
        return None
    state = folder.run.read()
    return Tally(num_done=state.num_answered, codes=Counter(state.failed or {}))


def check_schemas(job: ExtractJob, place: Place) -> None:
    """Raise InputError if the place cannot enforce the schema of a group's answers."""
    for group in range(len(job.groups)):
        place.check_schema(job.first_request(group, "").response_format["json_schema"]["schema"])


def write_first(job: ExtractJob, folder: ExtractFolder) -> bool:
    """Write the first questions, for every group of readable documents, unless they exist; return if there are any."""
    if not folder.first.lines.exists():
        with folder.writing(folder.first) as file:
            for number, group, text in _shown(job, folder):
                file.write(job.line(number, group, job.first_request(group, text)))
    return _has_lines(folder.first.lines)


def write_second_reading(job: ExtractJob, folder: ExtractFolder) -> bool:
    """Write the second reading's lines, unless they exist; return if there are any."""
    if not folder.second_reading.lines.exists():
        with folder.writing(folder.second_reading) as file:
            for number, group, text in _shown(job, folder):
                if (request := job.second_request(group, text)) is not None:
                    file.write(job.line(number, group, request))
    return _has_lines(folder.second_reading.lines)


def _shown(job: ExtractJob, folder: ExtractFolder) -> Iterator[tuple[int, int, str]]:
    """Yield the excerpt of each readable document for each group: document number, group and text."""
    for number, one in folder.prepared():
        if one.error is None:
            showing = job.showing(folder.cache.load(one.sha256))
            for group in range(len(job.groups)):
                yield number, group, job.excerpt(group, showing).layout.text


def write_again(job: ExtractJob, folder: ExtractFolder, stage: Stage) -> bool:
    """Write the next round of further questions, unless they exist; return if there are any."""
    return _write_later(job, folder, stage, again_requests)


def write_covered(job: ExtractJob, folder: ExtractFolder) -> bool:
    """Write the lines with covered values, unless they exist; return if there are any."""
    return _write_later(job, folder, folder.covered, covered_requests)


def _write_later(job: ExtractJob, folder: ExtractFolder, stage: Stage, requests: _Requests) -> bool:
    """Write the lines that follow from all answers, at most the lines of a batch: records note what is missing."""
    if not stage.lines.exists():
        most = load_settings().max_batch_lines
        with folder.writing(stage) as file, _AllResults(job, folder) as results:
            file.writelines(islice(_later_lines(job, folder, results, requests), most))
    return _has_lines(stage.lines)


def _later_lines(job: ExtractJob, folder: ExtractFolder, results: _AllResults, requests: _Requests) -> Iterator[bytes]:
    for number, one in folder.prepared():
        if one.error is not None:
            continue
        answers, showing = results.of(number), job.showing(folder.cache.load(one.sha256))
        for key, request in requests(job, showing, answers).items():
            yield job.line(number, key, request)


def run_batches(job: ExtractJob, folder: ExtractFolder, session: Session) -> None:
    """Run all batches into the folder."""
    if write_first(job, folder):
        session.run(folder.first)
        if job.passes.second_reading and write_second_reading(job, folder):
            session.run(folder.second_reading)
    rounds = map(folder.again, count(1)) if job.passes.again else ()
    for stage in takewhile(lambda stage: write_again(job, folder, stage), rounds):  # they end: `DocumentReading`
        session.run(stage)
    if job.passes.cover and write_covered(job, folder):
        session.run(folder.covered)


def records(job: ExtractJob, folder: ExtractFolder) -> Iterator[dict[str, Any]]:
    """Yield the record of each document, in input order."""
    with _AllResults(job, folder) as results:
        for number, one in folder.prepared():
            if one.error is None:
                yield _record(job, folder, one, results.of(number))
            else:
                yield failed_record(one.error, name=one.name, sha256=one.sha256, usage=usage_of([]))


def _record(job: ExtractJob, folder: ExtractFolder, prepared: Prepared, answers: Answers) -> dict[str, Any]:
    showing = job.showing(folder.cache.load(prepared.sha256))
    return record_of(job, showing, answers, name=prepared.name, sha256=prepared.sha256, usage=answers.usage)


class _AllResults:
    """The results of all stages, for a `with` block; documents must be read in order."""

    def __init__(self, job: ExtractJob, folder: ExtractFolder) -> None:
        self._job = job
        self._closing = ExitStack()
        stages = (folder.first, folder.second_reading, folder.covered, *folder.rounds())
        self._stages = [self._closing.enter_context(Results(stage.results)) for stage in stages]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._closing.close()

    def of(self, number: int) -> Answers:
        first, second_reading, covered, *rounds = self._stages
        return Answers(
            first=_first_answers(self._job, first, number=number),
            second_readings=_by_group(self._job, second_reading, number=number),
            again=[stage.pop_all(custom_id(number, "")) for stage in rounds],
            covered=_by_group(self._job, covered, number=number),
        )


def _by_group(job: ExtractJob, stage: Results, *, number: int) -> dict[int, LineResult]:
    """Return a document's results of a stage that has only some groups."""
    results = {group: stage.pop(custom_id(number, group)) for group in range(len(job.groups))}
    return {group: result for group, result in results.items() if result is not None}


def _first_answers(job: ExtractJob, first: Results, *, number: int) -> list[LineResult]:
    return [_required(first, custom_id(number, group)) for group in range(len(job.groups))]


def _required(first: Results, name: str) -> LineResult:
    result = first.pop(name)
    if result is None:
        raise ServiceError(f"the results have no line for {name}, or are not in the order of the lines")
    return result


def _has_lines(path: Path) -> bool:
    return path.stat().st_size > 0
