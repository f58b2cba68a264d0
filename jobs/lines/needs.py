"""What a line needs of the engine that answers it, beyond text, temperature, top_p and max_tokens.

Pure: a parsed request in, flags out. The flags of a chunk are one number, so that a claim compares them in SQL.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from enum import IntFlag, auto

from jobs.lines.bodies import ChatRequest, CompletionRequest
from jobs.lines.sampling import Sampling


class Need(IntFlag):
    """One capability each. Stored as a sum: append new ones at the end."""

    N = auto()
    SEED = auto()
    STOP = auto()
    LOGPROBS = auto()
    PROMPT_LOGPROBS = auto()
    PRESENCE_PENALTY = auto()
    FREQUENCY_PENALTY = auto()
    REPETITION_PENALTY = auto()
    TOP_K = auto()
    MIN_P = auto()
    LOGIT_BIAS = auto()
    ALLOWED_TOKEN_IDS = auto()
    BAD_WORDS = auto()
    STOP_TOKEN_IDS = auto()
    INCLUDE_STOP_STR_IN_OUTPUT = auto()
    IGNORE_EOS = auto()
    MIN_TOKENS = auto()
    SKIP_SPECIAL_TOKENS = auto()
    JSON = auto()
    """A JSON schema."""
    JSON_OBJECT = auto()
    REGEX = auto()
    CHOICE = auto()
    GRAMMAR = auto()
    COMPACT_JSON = auto()
    """JSON without white space."""
    STRUCTURED_COMPLETIONS = auto()
    """Any structure at /v1/completions."""
    TOOLS = auto()
    ECHO = auto()
    TOKEN_PROMPTS = auto()
    """Prompts given as token ids."""
    MANY_PROMPTS = auto()
    """Several prompts in a line."""

    def names(self) -> list[str]:
        """Return the names of its flags, as parameters are written."""
        return [one.name.lower() for one in self if one.name is not None]


NOTHING = Need(0)

_OF_SAMPLING: Mapping[str, Need] = {
    one.name: Need[one.name.upper()] for one in fields(Sampling) if one.name.upper() in Need.__members__
}
_NEUTRAL = {one.name: (one.default,) for one in fields(Sampling)} | {"top_k": (0, -1)}


def needs_of(request: ChatRequest | CompletionRequest) -> Need:
    """Return the needs of a parsed line."""
    sampling = request.sampling
    needs = NOTHING
    for name, need in _OF_SAMPLING.items():
        if getattr(sampling, name) not in _NEUTRAL[name]:
            needs |= need
    if request.structure is not None:
        needs |= _of_structure(request.structure.fields)
    return needs | (_of_chat(request) if isinstance(request, ChatRequest) else _of_completion(request))


def param_of(request: ChatRequest | CompletionRequest, need: Need) -> str:
    """Return the parameter of a line that one of its needs comes from."""
    if need & _STRUCTURES and request.structure is not None:
        return request.structure.param
    return _PARAMS.get(need) or need.names()[0]


_STRUCTURES = (
    Need.JSON
    | Need.JSON_OBJECT
    | Need.REGEX
    | Need.CHOICE
    | Need.GRAMMAR
    | Need.COMPACT_JSON
    | Need.STRUCTURED_COMPLETIONS
)
_PARAMS: Mapping[Need, str] = {Need.TOKEN_PROMPTS: "prompt", Need.MANY_PROMPTS: "prompt"}


def _of_structure(structure: Mapping[str, object]) -> Need:
    needs = NOTHING if structure.get("any_whitespace", True) else Need.COMPACT_JSON
    for name in ("json", "json_object", "regex", "choice", "grammar"):
        if name in structure:
            needs |= Need[name.upper()]
    return needs


def _of_chat(request: ChatRequest) -> Need:
    return NOTHING if request.tool_use is None else Need.TOOLS


def _of_completion(request: CompletionRequest) -> Need:
    needs = Need.ECHO if request.echo else NOTHING
    if request.structure is not None:
        needs |= Need.STRUCTURED_COMPLETIONS
    if len(request.prompts) > 1:
        needs |= Need.MANY_PROMPTS
    if any(not isinstance(prompt, str) for prompt in request.prompts):
        needs |= Need.TOKEN_PROMPTS
    return needs
