"""Keeps the results of batches that did not complete, so that only the other lines run again.

Merges lines and results in one pass, as both have the same order: nothing is held in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from cli.disk.download import replacing
from cli.disk.input_scan import named_lines
from cli.places.ordered_results import OrderedResults
from cli.places.stage import Stage
from cli.submitting.results import ResultFiles

_NO_RESULT = frozenset({"batch_expired", "batch_cancelled"})
"""Error codes of lines that did not run."""


def merge(lines: Path, sources: Sequence[ResultFiles], into: ResultFiles) -> int:
    """Write the first result of each line that has one, in the order of the lines; return their number.

    Raises ServiceError if results are not in the order of the lines, or belong to other lines.
    """
    num_found = 0
    with ExitStack() as closing:
        answers = _opened([source.answers for source in sources], closing)
        errors = _opened([source.errors for source in sources], closing)
        into_answers = closing.enter_context(replacing(into.answers))
        into_errors = closing.enter_context(replacing(into.errors))
        for custom_id, _ in named_lines(lines):
            answer, error = _pop(answers, custom_id), _pop(errors, custom_id)
            if answer is not None:
                into_answers.write(answer)
            elif error is not None:
                into_errors.write(error)
            num_found += answer is not None or error is not None
        for each in (*answers, *errors):
            each.require_end()
    if into.errors.stat().st_size == 0:
        into.errors.unlink()
    return num_found


def write_rest(stage: Stage) -> int:
    """Write the lines without a kept result; return their number."""
    num_left = 0
    with ExitStack() as closing:
        kept = _opened(stage.kept.paths, closing)
        rest = closing.enter_context(replacing(stage.rest))
        for custom_id, raw in named_lines(stage.lines):
            if _pop(kept, custom_id) is None:
                rest.write(raw.removesuffix(b"\n") + b"\n")
                num_left += 1
    return num_left


def _opened(paths: Sequence[Path], closing: ExitStack) -> list[OrderedResults]:
    return [OrderedResults(path, closing, without=_NO_RESULT) for path in paths if path.exists()]


def _pop(sources: Sequence[OrderedResults], custom_id: str) -> bytes | None:
    """Remove a line's result from all sources; return the first one."""
    results = [result for each in sources if (result := each.pop(custom_id)) is not None]
    return results[0] if results else None
