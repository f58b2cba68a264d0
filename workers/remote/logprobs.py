"""Reads the log-probabilities of a choice, in each server's form, into the form of its endpoint. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

Token = Mapping[str, Any]


def logprobs_of(value: Any, *, is_chat: bool, num_top: int) -> dict[str, Any] | None:
    """Return the log-probabilities with `num_top` alternatives a token; None where a token lacks a finite number.

    llama-server answers prompts in the form of conversations, and is asked for one alternative at least.
    """
    if not isinstance(value, dict):
        return None
    tokens = value.get("content")
    if isinstance(tokens, list):
        if not all(map(_is_scored, tokens)):
            return None
        cut = [{**token, "top_logprobs": _top(token)[:num_top]} for token in tokens]
        return {**value, "content": cut} if is_chat else _of_text(cut)
    return None if is_chat or not _are_of_text(value) else value


def _is_scored(token: Any) -> TypeGuard[Token]:
    return isinstance(token, dict) and is_number(token.get("logprob")) and isinstance(token.get("token"), str)


def _top(token: Token) -> list[Token]:
    top = token.get("top_logprobs")
    return [one for one in top if _is_scored(one)] if isinstance(top, list) else []


def _are_of_text(value: Mapping[str, Any]) -> bool:
    """Return whether there is a number for each token; the first token of an echoed prompt has none."""
    numbers = value.get("token_logprobs")
    return isinstance(numbers, list) and all(map(is_number, numbers[1 if numbers[:1] == [None] else 0 :]))


def _of_text(tokens: Sequence[Token]) -> dict[str, Any]:
    """Return the form of completions, in which the alternatives include the token itself."""
    lengths = (len(token["token"]) for token in tokens)
    return {
        "tokens": [token["token"] for token in tokens],
        "token_logprobs": [token["logprob"] for token in tokens],
        "top_logprobs": [{one["token"]: one["logprob"] for one in (token, *_top(token))} for token in tokens],
        "text_offset": list(itertools.accumulate(lengths, initial=0))[: len(tokens)],
    }


def is_number(value: Any) -> bool:
    """Tell whether a JSON value is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
