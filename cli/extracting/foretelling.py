"""Estimates the tokens of an extraction: of each pass, and of all together."""

from __future__ import annotations

from functools import reduce

from cli.estimating.estimate import Estimate, estimated
from cli.extracting.running import write_second_reading
from cli.extracting.work import ExtractFolder
from cli.places.session import Place
from features.documents.extraction.course.job import ExtractJob

_AGAIN_OF_WHOLE, _AGAIN_IN_PARTS = 0.1, 0.5
"""Tokens of further questions per token of the first ones, for prompts with whole documents and with parts: 0.03 to 0.2
and 0.3 to 0.9 for the demo model (docs/extraction.md)."""
_FURTHER = "further questions"
_OPEN_END = "; plus halves of truncated answers"


def foretold(job: ExtractJob, place: Place, folder: ExtractFolder) -> dict[str, str]:
    """Return the estimates of all passes as fields to show; the first questions must be written."""
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
    likely = {name: one.likely() for name, one in passes.items()}
    return {**fields, **likely, "tokens": total + (_OPEN_END if job.passes.again else "")}


def _covered(job: ExtractJob, first: Estimate) -> Estimate:
    """Return the first questions' estimate again: a cover may have more tokens than the value."""
    return first.share(1.0, most_tokens=_all_contexts(job, first))


def _all_contexts(job: ExtractJob, first: Estimate) -> int | None:
    """Return an upper bound of the tokens of one more round of all questions."""
    return None if job.window is None else first.num_lines * job.window.max_tokens


def _share_in_parts(job: ExtractJob, folder: ExtractFolder) -> float:
    """Return the share of questions that show only parts of their document."""
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
