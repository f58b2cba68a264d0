"""Sampling parameters of a request: `SamplingParams`, under the names of vLLM's class.

`protocol.sampling` has the ranges of numbers. Parameters that are not here are not supported.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from numbers import Integral, Real
from typing import Any

from engine.errors import InvalidParamsError
from engine.structured import StructuredOutput
from engine.thoughts import Thoughts
from engine.vllm_params import check_number_of_logprobs, check_output_kind, structured_output
from protocol.sampling import BIAS, MAX_INT, RANGES, TOKEN_ID, Range, Whole

_TRUNCATION = Whole(-1, MAX_INT)
_OR_NONE = {"or_none": True}
"""Metadata of a number that may be None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How tokens are chosen and when a request ends. Raises InvalidParamsError if a value is out of range."""

    n: int = 1
    """Children of the request, each with its own tokens."""
    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    """Above 0; 1 switches the filter off."""
    top_k: int = 0
    """0 and −1 switch the filter off."""
    min_p: float = 0.0
    """0 switches the filter off."""
    presence_penalty: float = 0.0
    """Counts tokens of the output only, like `frequency_penalty`."""
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    """Counts tokens of the prompt, too."""
    logit_bias: Mapping[int, float] | None = field(default=None, hash=False)
    """Maps token ids to a value that is added to their logits."""
    allowed_token_ids: Sequence[int] | None = None
    """None allows every token."""
    bad_words: Sequence[str] = ()
    """Converted to `bad_words_token_ids` before the request reaches the engine."""
    bad_words_token_ids: Sequence[Sequence[int]] = ()
    """Filled in with the tokenizer (`engine.text.with_bad_words_as_tokens`)."""
    seed: int | None = field(default=None, metadata=_OR_NONE)
    """None lets the engine derive one per request; child i of n uses seed + i."""
    stop: str | Sequence[str] = ()
    """Accepts one string; kept as a tuple."""
    stop_token_ids: Sequence[int] = ()
    """Accepts any sequence; kept as a tuple."""
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    max_tokens: int | None = field(default=16, metadata=_OR_NONE)
    """None means up to the model's context; 0 is for `prompt_logprobs` alone."""
    min_tokens: int = 0
    logprobs: int | None = field(default=None, metadata=_OR_NONE)
    """Report the chosen token and the k most likely ones of the raw distribution."""
    prompt_logprobs: int | None = field(default=None, metadata=_OR_NONE)
    """The same for each token of the prompt but its first."""
    detokenize: bool = True
    skip_special_tokens: bool = True
    structured: StructuredOutput | None = None
    """Constrains the text; `min_tokens` then delays the end only where the text may go on."""
    structured_outputs: StructuredOutput | None = None
    """vLLM's name of `structured`, where it is kept; accepts its StructuredOutputsParams or a dict of its fields."""
    truncate_prompt_tokens: int | None = None
    """`LLM` keeps this many tokens of the end of the prompt; −1: as many as leave room for `max_tokens` in the context.
    """
    output_kind: str | None = None
    """vLLM's RequestOutputKind; accepted where it asks for whole outputs, which `LLM` always returns, and not kept."""
    thoughts: Thoughts | None = None
    """Marks of the thoughts that outputs may have: `structured` applies behind them, and a budget ends them."""

    def __post_init__(self) -> None:
        self._read_vllm_names()
        _set_tuples(self)
        self._check_numbers()
        if self.top_p == 0.0:
            raise InvalidParamsError("top_p is 0; it must be above 0 and at most 1. Use temperature 0 for greedy.")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidParamsError(
                f"min_tokens is {self.min_tokens} and max_tokens is {self.max_tokens}; min_tokens must not be larger."
            )
        self._check_kinds()
        self._check_stops()
        self._check_bias()
        self._check_choice_of_tokens()
        if self.structured is not None and self.ignore_eos:
            raise InvalidParamsError(
                "ignore_eos is given with a structured output, which ends when its text is complete. Drop one."
            )

    def _read_vllm_names(self) -> None:
        if self.structured_outputs is not None:
            if self.structured is not None:
                raise InvalidParamsError(
                    "structured and structured_outputs are both given; they mean the same. Give one of them."
                )
            object.__setattr__(self, "structured", structured_output(self.structured_outputs))
            object.__setattr__(self, "structured_outputs", None)
        if self.output_kind is not None:
            check_output_kind(self.output_kind)
            object.__setattr__(self, "output_kind", None)
        if self.truncate_prompt_tokens is not None:
            object.__setattr__(self, "truncate_prompt_tokens", _plain(self.truncate_prompt_tokens))
            if self.truncate_prompt_tokens == 0 or self.truncate_prompt_tokens not in _TRUNCATION:
                raise InvalidParamsError(
                    f"truncate_prompt_tokens is {self.truncate_prompt_tokens!r}; it must be a whole number of at least "
                    "1, or -1 for as many tokens as fit."
                )

    def _check_numbers(self) -> None:
        for name, allowed, default in _CHECKED:
            value = getattr(self, name)
            if value is default:
                continue
            if type(value) not in _PLAIN:
                object.__setattr__(self, name, value := _plain(value))
            if name in _LOGPROBS:
                check_number_of_logprobs(name, value)
            if value is not None or name not in _NULLABLE:
                _check(name, value, allowed)

    def _check_kinds(self) -> None:
        for name in _FLAGS:
            value = getattr(self, name)
            if type(value) is not bool:
                object.__setattr__(self, name, value := _plain(value))
            if type(value) is not bool:
                raise InvalidParamsError(f"{name} is {value!r}; it must be True or False.")
        if not isinstance(self.structured, StructuredOutput | None):
            raise InvalidParamsError(f"structured is {self.structured!r}; it must be a StructuredOutput.")
        if not isinstance(self.thoughts, Thoughts | None):
            raise InvalidParamsError(f"thoughts is {self.thoughts!r}; it must be Thoughts.")

    def _check_stops(self) -> None:
        for text in self.stop:
            if not isinstance(text, str) or not text:
                raise InvalidParamsError(f"stop holds {text!r}; every stop string must be a non-empty string.")
            _check_characters("stop", text)
        for token_id in self.stop_token_ids:
            _check("stop_token_ids", token_id, TOKEN_ID)
        if self.stop and not self.detokenize:
            raise InvalidParamsError("stop is given with detokenize=False; stop strings need the text. Drop one.")

    def _check_bias(self) -> None:
        if self.logit_bias is None:
            return
        if not isinstance(self.logit_bias, Mapping):
            raise InvalidParamsError(f"logit_bias is {self.logit_bias!r}; it must map token ids to numbers.")
        biases = {_plain(token_id): _plain(bias) for token_id, bias in self.logit_bias.items()}
        object.__setattr__(self, "logit_bias", biases)
        for token_id, bias in biases.items():
            _check("logit_bias's token id", token_id, TOKEN_ID)
            _check("logit_bias", bias, BIAS)

    def _check_choice_of_tokens(self) -> None:
        for word in self.bad_words:
            if not isinstance(word, str) or not word.strip():
                raise InvalidParamsError(f"bad_words holds {word!r}; every bad word must be a string with a character.")
            _check_characters("bad_words", word)
        for token_ids in self.bad_words_token_ids:
            if not token_ids:
                raise InvalidParamsError("bad_words_token_ids holds an empty sequence; give at least one token id.")
            for token_id in token_ids:
                _check("bad_words_token_ids", token_id, TOKEN_ID)
        if self.allowed_token_ids is None:
            return
        _check_ids("allowed_token_ids", self.allowed_token_ids)
        if {ids[-1] for ids in self.bad_words_token_ids}.issuperset(self.allowed_token_ids):
            # With such a token at least one token is always allowed, whatever came before.
            raise InvalidParamsError(
                "allowed_token_ids holds no token but those that end bad words; allow another one, or leave it out."
            )

    @property
    def has_penalty(self) -> bool:
        """Tell whether earlier tokens change the logits of the next one."""
        return self.presence_penalty != 0.0 or self.frequency_penalty != 0.0 or self.repetition_penalty != 1.0

    @property
    def is_greedy(self) -> bool:
        """Tell whether the most likely token is always taken."""
        return self.temperature == 0.0 or self.top_k == 1


def _check(name: str, value: object, allowed: Range) -> None:
    if value not in allowed:
        raise InvalidParamsError(f"{name} is {value!r}; it must be {allowed}.")


def _check_ids(name: str, token_ids: Sequence[Any]) -> None:
    if not TOKEN_ID.holds_all(token_ids):
        for token_id in token_ids:
            _check(name, token_id, TOKEN_ID)


def _set_tuples(params: SamplingParams) -> None:
    for name in _SEQUENCES:
        value = getattr(params, name)
        if type(value) is not tuple and (value is not None or name != "allowed_token_ids"):
            object.__setattr__(params, name, _as_tuple(name, value))
    if params.bad_words_token_ids:
        bad_ids = tuple(_as_tuple("bad_words_token_ids", ids) for ids in params.bad_words_token_ids)
        object.__setattr__(params, "bad_words_token_ids", bad_ids)


def _as_tuple(name: str, value: object) -> tuple[Any, ...]:
    value = _plain(value)
    if value is None:  # what clients send for a parameter left out
        return ()
    if isinstance(value, str):
        return (value,)
    if isinstance(value, bytes | bytearray | Mapping) or not isinstance(value, Iterable):
        raise InvalidParamsError(f"{name} is {value!r}; it must be a list, or left out.")
    return tuple(map(_plain, value))


def _check_characters(name: str, text: str) -> None:
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise InvalidParamsError(f"{name} holds {text!r}, with half of a surrogate pair, which is no character.")


def _plain(value: Any) -> Any:
    """Convert numbers of any type to Python's own, also inside arrays and tensors."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, bool) or not isinstance(value, Real):
        return value
    return int(value) if isinstance(value, Integral) else float(value)


_DEFAULTS = {one.name: one.default for one in fields(SamplingParams)}

_CHECKED = tuple((name, allowed, _DEFAULTS[name]) for name, allowed in RANGES.items())
"""With the default, which most parameters have and which needs no check."""

_NULLABLE = frozenset(one.name for one in fields(SamplingParams) if one.metadata.get("or_none"))

_FLAGS = tuple(one.name for one in fields(SamplingParams) if isinstance(one.default, bool))

_LOGPROBS = ("logprobs", "prompt_logprobs")

_SEQUENCES = ("stop", "stop_token_ids", "bad_words", "bad_words_token_ids", "allowed_token_ids")

_PLAIN = frozenset({int, float, bool, type(None)})
