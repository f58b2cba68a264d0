"""vLLM's names for parameters of requests: translated to ours, or refused with ours named."""

from __future__ import annotations

from collections.abc import Mapping

from engine.errors import InvalidParamsError
from engine.structured import StructuredOutput
from protocol.sampling import MAX_LOGPROBS

_STRUCTURES = ("json", "json_object", "regex", "choice", "grammar")
_UNSUPPORTED_STRUCTURES = ("disable_additional_properties", "whitespace_pattern", "structural_tag")
_WHOLE_OUTPUTS = ("FINAL_ONLY", "CUMULATIVE")
"""Kinds of output that are the same where only ended requests are returned."""


def structured_output(given: object) -> StructuredOutput:
    """Return vLLM's StructuredOutputsParams, or a dict of its fields, as our value.

    Without `disable_any_whitespace` JSON has no white space between its tokens; with False, as in vLLM's class, it may.
    Raises InvalidParamsError for anything else, and for fields that are not supported.
    """
    if isinstance(given, StructuredOutput):
        return given
    fields = given if isinstance(given, Mapping) else {name: getattr(given, name, None) for name in _vllm_fields()}
    values = {str(name): value for name, value in fields.items() if value is not None}
    refused = [name for name, value in values.items() if name not in (*_STRUCTURES, "disable_any_whitespace") and value]
    if refused or not values:
        raise InvalidParamsError(
            f"structured_outputs has {' and '.join(refused) or repr(given)}; give one of {', '.join(_STRUCTURES)}, and "
            "disable_any_whitespace, or structured=StructuredOutput(…)."
        )
    kinds = {name: value for name, value in values.items() if name in _STRUCTURES}
    if "disable_any_whitespace" not in values:
        return StructuredOutput(**kinds)
    disables = values["disable_any_whitespace"]
    if not isinstance(disables, bool):
        raise InvalidParamsError(
            f"structured_outputs' disable_any_whitespace is {disables!r}; it must be True or False."
        )
    return StructuredOutput(**kinds, any_whitespace=not disables)


def check_output_kind(kind: object) -> None:
    """Raise InvalidParamsError unless a RequestOutputKind, or its name, asks for whole outputs."""
    name = getattr(kind, "name", kind)
    if name not in _WHOLE_OUTPUTS:
        raise InvalidParamsError(
            f"output_kind is {name!r}; LLM returns whole outputs, {' or '.join(_WHOLE_OUTPUTS)}. Leave it out; parts "
            "of an output are the TokenDelta of Engine.step and EngineProcess."
        )


def check_number_of_logprobs(name: str, count: object) -> None:
    """Raise InvalidParamsError for -1, vLLM's value for the whole vocabulary."""
    if isinstance(count, int) and count == -1:
        raise InvalidParamsError(
            f"{name} is -1, vLLM's value for the whole vocabulary; beside the chosen token at most {MAX_LOGPROBS} of "
            f"the most likely ones are reported. Give 0 to {MAX_LOGPROBS}."
        )


def _vllm_fields() -> tuple[str, ...]:
    return (*_STRUCTURES, "disable_any_whitespace", *_UNSUPPORTED_STRUCTURES)
