"""From what a line says its output must be to the engine's terms, or an error that names the parameter.

Asks llguidance, once for each schema or grammar, whether it can be kept; knows no tokenizer and no engine process.
"""

from __future__ import annotations

import functools

from engine.errors import InvalidParamsError, InvalidRequestError
from engine.grammars.compiler import MAX_THREADS, GrammarCompiler
from engine.grammars.grammar import check_grammar
from engine.structured import StructuredOutput
from jobs.lines.body_checks import BodyError
from jobs.lines.body_structure import Structure

CHECK_SECONDS = 10.0
"""How long a check may take, as long as the engine compiles (`EngineConfig.grammar_timeout_seconds`)."""

_UNSUPPORTED = "unsupported_structure"


def structured_output(structure: Structure) -> StructuredOutput:
    """Return the engine's form. Raises BodyError when it cannot be kept, with an unsupported keyword's name."""
    try:
        structured = StructuredOutput(**structure.fields)
    except InvalidParamsError as error:
        raise BodyError(structure.param, str(error)) from None
    except InvalidRequestError as error:
        raise BodyError(structure.param, str(error), code=_UNSUPPORTED) from None
    check_structure(structured, param=structure.param)
    return structured


def check_structure(structured: StructuredOutput, *, param: str) -> None:
    """Raise BodyError, naming `param`, when a structure cannot be kept, or it takes too long to tell."""
    problem = _checks().compile(structured).error
    if problem is not None:
        raise BodyError(param, problem, code=_UNSUPPORTED)


class _Checks:
    """Compiles nothing: asks whether one could."""

    def load(self) -> None:
        """A check needs no model."""

    def compile(self, structured: StructuredOutput) -> None:
        check_grammar(structured)


@functools.cache
def _checks() -> GrammarCompiler[None]:
    """Return the one that all chunks share; with all its threads at work, so that no check waits for slow ones."""
    return GrammarCompiler(_Checks(), timeout_seconds=CHECK_SECONDS, num_threads=MAX_THREADS)
