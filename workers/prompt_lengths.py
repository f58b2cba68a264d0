"""Checks that a prompt fits into the model's context; a long text fails before all of it is tokenised."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jobs.lines.body_checks import BodyError
from jobs.lines.body_template import TRUNCATE

PIECE_CHARACTERS = 64 * 1024
"""Size of the pieces whose tokens are counted at once: a tokenizer needs up to 230 bytes per token."""

MAX_TRUNCATED_CHARACTERS = 4 * 2**20
"""Characters of a prompt that is tokenised as a whole to keep its last tokens: some 240 MB for usual texts."""

CUT_TOKENS = 256
"""Tokens of each such piece that are not counted: near a cut the whole text may have different and fewer tokens.

Cutting 2 MB in 30 places gave 20 tokens more than the whole text has (demo model, November 2026).
"""

_LIKELY_CHARACTERS = 4
"""Characters per token: a text that is likely to fit is tokenised as a whole without being counted first."""


class Unwanted(Exception):
    """The prompt is no longer needed."""


class PromptLengths:
    """The limit of one model: `max_model_len` tokens, at least one of them for the answer."""

    def __init__(self, tokenizer: Any, *, max_model_len: int) -> None:
        self._tokenizer = getattr(tokenizer, "backend_tokenizer", None)
        self._limit = max_model_len
        self._max_unchecked = max(PIECE_CHARACTERS, min(max_model_len * _LIKELY_CHARACTERS, 2**20))

    def check_text(self, text: str, *, param: str, is_wanted: Callable[[], bool]) -> None:
        """Raise BodyError for a text that is certainly too long, as soon as the tokens counted so far show it.

        A bound by bytes alone would not help: tokens of 128 spaces are common. Raise Unwanted soon after `is_wanted`
        returns False.
        """
        if self._tokenizer is None or len(text) <= self._max_unchecked:
            if not is_wanted():
                raise Unwanted
            return
        num_tokens = 0
        for start in range(0, len(text), PIECE_CHARACTERS):
            if not is_wanted():
                raise Unwanted
            piece = text[start : start + PIECE_CHARACTERS]
            (encoded,) = self._tokenizer.encode_batch_fast([piece], add_special_tokens=False)
            num_tokens += max(0, len(encoded) - CUT_TOKENS)
            if num_tokens >= self._limit:
                raise self._too_long(f"at least {num_tokens}", param=param)

    def check_truncated_text(self, text: str, *, is_wanted: Callable[[], bool]) -> None:
        """Raise BodyError for a text too long to be tokenised as a whole, of which the last tokens are kept.

        Raise Unwanted if `is_wanted` returns False.
        """
        if not is_wanted():
            raise Unwanted
        if len(text) > MAX_TRUNCATED_CHARACTERS:
            message = (
                f"the prompt has {len(text):,} characters; at most {MAX_TRUNCATED_CHARACTERS:,} are tokenised to keep "
                "the last tokens. Shorten it"
            )
            raise BodyError(TRUNCATE, message, code="context_length_exceeded")

    def check(self, prompts: Sequence[Sequence[int]], max_tokens: int | None, *, param: str) -> None:
        """Raise BodyError for a prompt that is empty or leaves too little room for the answer."""
        for prompt in prompts:
            self._check(len(prompt), max_tokens, param=param)

    def _check(self, num_prompt_tokens: int, max_tokens: int | None, *, param: str) -> None:
        limit = self._limit
        if num_prompt_tokens == 0:
            raise BodyError(param, f"{param} is empty; give at least one token")
        if num_prompt_tokens >= limit:
            raise self._too_long(str(num_prompt_tokens), param=param)
        if max_tokens is not None and num_prompt_tokens + max_tokens > limit:
            message = (
                f"max_tokens is {max_tokens} and {param} has {num_prompt_tokens} tokens; together they may be at most "
                f"{limit}, this model's context. Lower max_tokens to {limit - num_prompt_tokens} or shorten {param}"
            )
            raise BodyError("max_tokens", message, code="context_length_exceeded")

    def _too_long(self, num_tokens: str, *, param: str) -> BodyError:
        message = (
            f"{param} has {num_tokens} tokens and this model's context is {self._limit}, of which at least one "
            "is for the answer. Shorten it"
        )
        return BodyError(param, message, code="context_length_exceeded")
