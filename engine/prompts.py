"""Reads what users of `LLM` give: prompts as text or token ids, conversations, parameters. Runs nothing.

What is no prompt is refused by itself, since the requests beside it are to run.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral, Number
from typing import Any

from engine.errors import InvalidRequestError
from engine.params import SamplingParams

Prompt = str | Sequence[int] | dict[str, Any]
"""Text, token ids, or vLLM's {"prompt": …} / {"prompt_token_ids": […]}."""

_KEYS = ("prompt_token_ids", "prompt")
"""Of a dict, those that are read; the first that is given counts."""


def prompts_of(given: Any) -> list[Any]:
    """Return what each request is given, of one prompt or several."""
    items = _items(given)
    is_one = bool(items) and isinstance(_plain(items[0]), Number) and not isinstance(given, Number)
    return [items] if is_one else items


def conversations_of(given: Any) -> list[Any]:
    """Return what each request is given, of one conversation or several."""
    items = _items(given)
    return [items] if items and isinstance(items[0], Mapping) else items


def is_text(item: Any) -> bool:
    """Tell whether a prompt is one that a tokenizer has to read."""
    return isinstance(_value_of(item) if isinstance(item, Mapping) else item, str)


def read_prompt(item: Any) -> str | list[Any]:
    """Return a prompt's text, or what should be its token ids. Raises InvalidRequestError where it has neither.

    An InvalidRequestError in the place of a prompt is raised: it says why a conversation has none.
    """
    if isinstance(item, InvalidRequestError):
        raise item
    given = _plain(_value_in(item) if isinstance(item, Mapping) else item)
    if isinstance(given, str):
        _check_text(given)
        return given
    if isinstance(given, bytes | bytearray | Mapping) or not isinstance(given, Iterable):
        raise InvalidRequestError(
            f"The prompt is {reprlib.repr(given)}; give text, token ids, or a dict with prompt or prompt_token_ids."
        )
    return list(map(_plain, given))


def read_conversation(given: Any) -> list[dict[str, Any]]:
    """Return the messages of a conversation. Raises InvalidRequestError for what is none, or has more than text."""
    return [_message(one) for one in _items(given)]


def _message(given: Any) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise InvalidRequestError(
            f"The conversation has {reprlib.repr(given)}; give messages, each a dict with role and content."
        )
    content = given.get("content")
    return {**given, "content": "\n".join(map(_text_of_part, content))} if isinstance(content, list) else {**given}


def _text_of_part(part: Any) -> str:
    """Return the text of a part of a message; of an image a template would write a place that nothing is put in."""
    kind = part.get("type") if isinstance(part, Mapping) else None
    if not isinstance(part, Mapping) or kind != "text" or not isinstance(part.get("text"), str):
        raise InvalidRequestError(
            f"A message has a part {reprlib.repr(part) if kind is None else f'of type {kind!r}'}; this engine reads "
            'only text: {"type": "text", "text": …}.'
        )
    return str(part["text"])


def params_of(given: Any, *, num_prompts: int) -> list[SamplingParams]:
    """Return the parameters of each prompt. Raises InvalidRequestError unless there is one for all, or one for each."""
    if given is None or isinstance(given, SamplingParams):
        return [given or SamplingParams()] * num_prompts
    found = _items(given)
    for one in found:
        if not isinstance(one, SamplingParams):
            raise InvalidRequestError(f"sampling_params has {reprlib.repr(one)}; give SamplingParams.")
    if len(found) != num_prompts:
        raise InvalidRequestError(f"{len(found)} sampling_params for {num_prompts} prompts; give one, or one for each.")
    return found


def _items(given: Any) -> list[Any]:
    """Return the items of a collection; of what is none, that alone."""
    given = _plain(given)
    is_one = isinstance(given, str | bytes | bytearray | Mapping) or not isinstance(given, Iterable)
    return [given] if is_one else list(given)


def _plain(value: Any) -> Any:
    """Return whole numbers as `int`, whatever their type, and arrays and tensors as lists."""
    if type(value) in (int, str):  # most are, and asking numbers' classes takes longer
        return value
    if isinstance(value, Integral):
        return value if isinstance(value, bool) else int(value)
    return value.tolist() if hasattr(value, "tolist") else value


def _value_of(item: Mapping[Any, Any]) -> Any:
    """Return what a dict gives as its prompt; None where that is nothing."""
    return next((item[name] for name in _KEYS if item.get(name) is not None), None)


def _value_in(item: Mapping[Any, Any]) -> Any:
    """Return what a dict gives as its prompt. Raises InvalidRequestError where that is nothing, or not all it gives."""
    beside = [name for name, value in item.items() if name not in _KEYS and value is not None]
    if beside:
        raise InvalidRequestError(
            f"The prompt is a dict with {', '.join(map(reprlib.repr, beside))}; this engine reads only prompt and "
            "prompt_token_ids."
        )
    found = _value_of(item)
    if found is None:
        raise InvalidRequestError("The prompt is a dict without prompt and prompt_token_ids; give one of them.")
    return found


def _check_text(text: str) -> None:
    """Raise InvalidRequestError for a text that no tokenizer reads: half of a surrogate pair is no character."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            f"The prompt has {text[error.start]!r} at character {error.start}, half of a surrogate pair; text must be "
            "whole characters. Remove or replace it, or read its file as UTF-8."
        ) from error
