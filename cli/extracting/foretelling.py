"""What an extraction would take before it runs: the tokens of each of its passes, and of all together."""

from __future__ import annotations

from functools import reduce

from cli.extracting.running import write_second_reading
from cli.extracting.work import ExtractFolder
from cli.places.estimate import Estimate, estimated
from cli.places.session import Place
from features.documents.extraction.course.job import ExtractJob

_AGAIN_OF_WHOLE, _AGAIN_IN_PARTS = 0.1, 0.5
"""Tokens of further questions for each of the first ones', where a prompt shows all of its document and where parts of
it: of the demo model 0.03 to 0.2, and 0.3 to 0.9 (docs/extraction.md)."""
_FURTHER = "further questions"
_OPEN_END = "; halves of answers that are cut off come on top"


def foretold(job: ExtractJob, place: Place, folder: ExtractFolder) -> dict[str, str]:
    """Return, as fields to be shown, what the passes of a job take whose first questions are written."""
    first, fields = estimated(place, folder.first.lines)
    passes = {"first questions": first}
    if job.passes.second_reading and write_second_reading(job, folder):
        passes["second reading"], _ = estimated(place, folder.second_reading.lines)
    if job.passes.cover:
        passes["covered"] = _covered(job, first)
    if job.passes.again:
        in_parts = _share_in_parts(job, folder)
        share = _AGAIN_OF_WHOLE + in_parts * (_AGAIN_IN_PARTS - _AGAIN_OF_WHOLE)
        passes[_FURTHER] = first.share(share, most_tokens=_all_contexts(job, first))
    total = reduce(Estimate.plus, passes.values()).shown()
    told = {name: one.likely() for name, one in passes.items()}
    return {**fields, **told, "tokens": total + (_OPEN_END if job.passes.again else "")}


def _covered(job: ExtractJob, first: Estimate) -> Estimate:
    """Return what the first questions take once more: what covers a value may have more tokens than the value."""
    return first.share(1.0, most_tokens=_all_contexts(job, first))


def _all_contexts(job: ExtractJob, first: Estimate) -> int | None:
    """Return the most that one more round of all questions takes."""
    return None if job.window is None else first.num_lines * job.window.max_tokens


def _share_in_parts(job: ExtractJob, folder: ExtractFolder) -> float:
    """Return the share of questions that show parts of their document alone."""
    if job.window is None:
        return 0.0
    num_questions = num_parts = 0
    for _, one in folder.prepared():
        if one.error is None:
            showing = job.showing(folder.cache.load(one.sha256))
            for group in range(len(job.groups)):
                num_questions += 1
                num_parts += job.excerpt(group, showing) is not showing.whole
    return num_parts / num_questions if num_questions else 0.0
