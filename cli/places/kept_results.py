"""Results of batches that ended before all their lines had one: kept, so that only the others run again.

Walks along the lines and along results, which are in their order: nothing is held in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from cli.disk.download import replacing
from cli.disk.input_scan import named_lines
from cli.places.ordered_results import OrderedResults
from cli.places.stage import ResultFiles, Stage

_NO_RESULT = frozenset({"batch_expired", "batch_cancelled"})
"""What a line is told that did not come to run."""


def merge(lines: Path, sources: Sequence[ResultFiles], into: ResultFiles) -> int:
    """Write the first result of each line that has one, in the order of the lines; return how many do.

    Raises ServiceError where results are not in the order of the lines, or of others.
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
    """Write the lines that have no result kept; return how many there are."""
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
    """Take a line's result out of all sources; return the first."""
    found = [result for each in sources if (result := each.pop(custom_id)) is not None]
    return found[0] if found else None
