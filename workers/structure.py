"""From what a line says its output must be to the engine's terms, or an error that names the parameter.

Asks llguidance, once for each schema or grammar, whether it can be kept; knows no tokenizer and no engine process.
"""

import functools

from engine.errors import InvalidParamsError, InvalidRequestError
from engine.grammar import check_grammar
from engine.structured import StructuredOutput
from jobs.body_checks import BodyError
from jobs.body_structure import Structure


def structured_output(structure: Structure) -> StructuredOutput:
    """Return the engine's form. Raises BodyError when it cannot be kept, with an unsupported keyword's name."""
    try:
        structured = StructuredOutput(**structure.fields)
    except InvalidParamsError as error:
        raise BodyError(structure.param, str(error)) from None
    check_structure(structured, param=structure.param)
    return structured


def check_structure(structured: StructuredOutput, *, param: str) -> None:
    """Raise BodyError, naming `param`, when a structure cannot be kept."""
    problem = _problem_of(structured)
    if problem is not None:
        raise BodyError(param, problem, code="unsupported_structure")


@functools.lru_cache(maxsize=256)
def _problem_of(structured: StructuredOutput) -> str | None:
    """Keep the verdict, since the lines of a batch mostly share one schema."""
    try:
        check_grammar(structured)
    except InvalidRequestError as error:
        return str(error)
    return None
