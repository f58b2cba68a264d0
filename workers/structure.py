"""Turns a line's structure of output into the engine's form, or raises an error that names the parameter.

llguidance checks once for each schema or grammar whether it can be enforced.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

from engine.errors import InvalidParamsError, InvalidRequestError
from engine.grammars.compiler import GrammarCompiler
from engine.grammars.grammar import check_grammar
from engine.structured import StructuredOutput
from jobs.lines.body_checks import BodyError
from jobs.lines.body_structure import Structure
from workers.prompt_lengths import Unwanted

CHECK_SECONDS = 10.0
"""Timeout of a check, the same as the engine's for compiling (`EngineConfig.grammar_timeout_seconds`)."""

_UNSUPPORTED = "unsupported_structure"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asker:
    """The line that a check is for; the check takes a turn of its tenant."""

    tenant: str = ""
    is_wanted: Callable[[], bool] = lambda: True

    def keep_on(self) -> None:
        """Raise Unwanted once the answer is no longer needed."""
        if not self.is_wanted():
            raise Unwanted


def structured_output(structure: Structure, asker: Asker) -> StructuredOutput:
    """Return the engine's form. Raise BodyError if it cannot be enforced, naming an unsupported keyword."""
    try:
        structured = StructuredOutput(**structure.fields)
    except InvalidParamsError as error:
        raise BodyError(structure.param, str(error)) from None
    except InvalidRequestError as error:
        raise BodyError(structure.param, str(error), code=_UNSUPPORTED) from None
    check_structure(structured, asker, param=structure.param)
    return structured


def check_structure(structured: StructuredOutput, asker: Asker, *, param: str) -> None:
    """Raise BodyError, naming `param`, if a structure cannot be enforced or the check times out.

    Waits for its turn behind slow checks; raise Unwanted once the answer is no longer needed.
    """
    problem = _checks().compile(structured, tenant=asker.tenant, keep_on=asker.keep_on).error
    if problem is not None:
        raise BodyError(param, problem, code=_UNSUPPORTED)


class _Checks:
    """A compiler that only checks whether a structure could be compiled."""

    def load(self) -> None:
        """A check needs no model."""

    def compile(self, structured: StructuredOutput) -> None:
        check_grammar(structured)


@functools.cache
def _checks() -> GrammarCompiler[None]:
    """Return the checker that all chunks share."""
    return GrammarCompiler(_Checks(), timeout_seconds=CHECK_SECONDS)
