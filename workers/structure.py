"""From what a line says its output must be to the engine's terms, or an error that names the parameter.

Asks llguidance, once for each schema or grammar, whether it can be kept; knows no tokenizer and no engine process.
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
"""How long a check may take, as long as the engine compiles (`EngineConfig.grammar_timeout_seconds`)."""

_UNSUPPORTED = "unsupported_structure"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asker:
    """Whose line a check is for: it takes that tenant's turn."""

    tenant: str = ""
    is_wanted: Callable[[], bool] = lambda: True

    def keep_on(self) -> None:
        """Raise Unwanted once nobody waits for the answer."""
        if not self.is_wanted():
            raise Unwanted


def structured_output(structure: Structure, asker: Asker) -> StructuredOutput:
    """Return the engine's form. Raises BodyError when it cannot be kept, with an unsupported keyword's name."""
    try:
        structured = StructuredOutput(**structure.fields)
    except InvalidParamsError as error:
        raise BodyError(structure.param, str(error)) from None
    except InvalidRequestError as error:
        raise BodyError(structure.param, str(error), code=_UNSUPPORTED) from None
    check_structure(structured, asker, param=structure.param)
    return structured


def check_structure(structured: StructuredOutput, asker: Asker, *, param: str) -> None:
    """Raise BodyError, naming `param`, when a structure cannot be kept, or it takes too long to tell.

    Waits for its turn behind slow ones; raises Unwanted where nobody waits for the answer any more.
    """
    problem = _checks().compile(structured, tenant=asker.tenant, keep_on=asker.keep_on).error
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
    """Return the one that all chunks share."""
    return GrammarCompiler(_Checks(), timeout_seconds=CHECK_SECONDS)
