"""Parse the arguments of `LLM`: prompts as text or token ids, conversations, parameters.

An invalid prompt is refused on its own, because the requests beside it run.
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
"""The keys of a dict that are read; the first one present counts."""


def prompts_of(prompts: Any) -> list[Any]:
    """Return a list of one prompt per request, from one prompt or several."""
    items = _items(prompts)
    is_one = bool(items) and isinstance(_plain(items[0]), Number) and not isinstance(prompts, Number)
    return [items] if is_one else items


def conversations_of(conversations: Any) -> list[Any]:
    """Return a list of one conversation per request, from one conversation or several."""
    items = _items(conversations)
    return [items] if items and isinstance(items[0], Mapping) else items


def is_text(item: Any) -> bool:
    """Tell whether a prompt needs a tokenizer."""
    return isinstance(_value_of(item) if isinstance(item, Mapping) else item, str)


def read_prompt(item: Any) -> str | list[Any]:
    """Return a prompt's text, or its token ids, unchecked. Raises InvalidRequestError if it has neither.

    An InvalidRequestError in place of a prompt is raised: it says why a conversation has no prompt.
    """
    if isinstance(item, InvalidRequestError):
        raise item
    prompt = _plain(_value_in(item) if isinstance(item, Mapping) else item)
    if isinstance(prompt, str):
        _check_text(prompt)
        return prompt
    if isinstance(prompt, bytes | bytearray | Mapping) or not isinstance(prompt, Iterable):
        raise InvalidRequestError(
            f"The prompt is {reprlib.repr(prompt)}; give text, token ids, or a dict with prompt or prompt_token_ids."
        )
    return list(map(_plain, prompt))


def read_conversation(conversation: Any) -> list[dict[str, Any]]:
    """Return the messages of a conversation. Raises InvalidRequestError if it is invalid or has more than text."""
    return [_message(one) for one in _items(conversation)]


def _message(message: Any) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise InvalidRequestError(
            f"The conversation has {reprlib.repr(message)}; give messages, each a dict with role and content."
        )
    content = message.get("content")
    return {**message, "content": "\n".join(map(_text_of_part, content))} if isinstance(content, list) else {**message}


def _text_of_part(part: Any) -> str:
    """Return the text of a part of a message. A template would write an empty placeholder for an image."""
    kind = part.get("type") if isinstance(part, Mapping) else None
    if not isinstance(part, Mapping) or kind != "text" or not isinstance(part.get("text"), str):
        raise InvalidRequestError(
            f"A message has a part {reprlib.repr(part) if kind is None else f'of type {kind!r}'}; this engine reads "
            'only text: {"type": "text", "text": …}.'
        )
    return str(part["text"])


def params_of(params: Any, *, num_prompts: int) -> list[SamplingParams]:
    """Return the parameters of each prompt. Raises InvalidRequestError unless there is one for all, or one for each."""
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * num_prompts
    items = _items(params)
    for one in items:
        if not isinstance(one, SamplingParams):
            raise InvalidRequestError(f"sampling_params has {reprlib.repr(one)}; give SamplingParams.")
    if len(items) != num_prompts:
        raise InvalidRequestError(f"{len(items)} sampling_params for {num_prompts} prompts; give one, or one for each.")
    return items


def _items(value: Any) -> list[Any]:
    """Return the items of a collection; a list of the value itself if it is no collection."""
    value = _plain(value)
    is_one = isinstance(value, str | bytes | bytearray | Mapping) or not isinstance(value, Iterable)
    return [value] if is_one else list(value)


def _plain(value: Any) -> Any:
    """Convert whole numbers of any type to `int`, and arrays and tensors to lists."""
    if type(value) in (int, str):  # most are, and isinstance checks of number classes take longer
        return value
    if isinstance(value, Integral):
        return value if isinstance(value, bool) else int(value)
    return value.tolist() if hasattr(value, "tolist") else value


def _value_of(item: Mapping[Any, Any]) -> Any:
    """Return the prompt in a dict; None if there is none."""
    return next((item[name] for name in _KEYS if item.get(name) is not None), None)


def _value_in(item: Mapping[Any, Any]) -> Any:
    """Return the prompt in a dict. Raises InvalidRequestError if there is none, or other keys beside it."""
    beside = [name for name, value in item.items() if name not in _KEYS and value is not None]
    if beside:
        raise InvalidRequestError(
            f"The prompt is a dict with {', '.join(map(reprlib.repr, beside))}; this engine reads only prompt and "
            "prompt_token_ids."
        )
    prompt = _value_of(item)
    if prompt is None:
        raise InvalidRequestError("The prompt is a dict without prompt and prompt_token_ids; give one of them.")
    return prompt


def _check_text(text: str) -> None:
    """Raise InvalidRequestError for text that no tokenizer reads: half of a surrogate pair is no character."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            f"The prompt has {text[error.start]!r} at character {error.start}, half of a surrogate pair; text must be "
            "whole characters. Remove or replace it, or read its file as UTF-8."
        ) from error
