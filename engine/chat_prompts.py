"""Prompts of conversations, by a tokenizer's chat template or one of the caller's."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.errors import InvalidRequestError
from engine.prompts import read_conversation


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """What a chat template is given beside the messages. Raises InvalidRequestError for values of the wrong kind."""

    tools: Sequence[Mapping[str, Any]] | None = None
    """Functions that the model may call, in OpenAI's form."""
    chat_template: str | None = None
    """The text of a Jinja template in place of the model's."""
    add_generation_prompt: bool = True
    """End the prompt with the beginning of an answer."""
    continue_final_message: bool = False
    """End the prompt in the last message, which the answer continues."""

    def __post_init__(self) -> None:
        for name in ("add_generation_prompt", "continue_final_message"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidRequestError(f"{name} is {getattr(self, name)!r}; it must be True or False.")
        if self.add_generation_prompt and self.continue_final_message:
            raise InvalidRequestError(
                "continue_final_message is True with add_generation_prompt, which begins a new message; give "
                "add_generation_prompt=False with it."
            )
        if self.chat_template is not None and not (isinstance(self.chat_template, str) and self.chat_template):
            raise InvalidRequestError(
                f"chat_template is {reprlib.repr(self.chat_template)}; give the text of a Jinja template, or leave it "
                "out for the model's own."
            )
        if self.tools is not None:
            _check_tools(self.tools)


class ChatPrompts:
    """Turn conversations into token ids."""

    def __init__(self, tokenizer: Any, options: ChatOptions) -> None:
        """Raises InvalidRequestError if there is no template, or if it ignores the tools."""
        has_own = tokenizer is not None and bool(getattr(tokenizer, "chat_template", None))
        if tokenizer is None or not (has_own or options.chat_template):
            raise InvalidRequestError("This model has no chat template; use generate() with a prompt you wrote.")
        self._tokenizer = tokenizer
        self._options = options

    def ids_of(self, messages: Any) -> list[int] | InvalidRequestError:
        """Return a conversation's prompt, or why it has none. Raises InvalidRequestError if none has one."""
        try:
            conversation = read_conversation(messages)
            ids = self._rendered(conversation, tools=self._options.tools)
            if self._options.tools and ids == self._rendered(conversation, tools=None):
                raise InvalidRequestError(
                    "tools are given, and the chat template does not write them into the prompt; give a chat_template "
                    "that does, or describe the tools in a message."
                )
        except InvalidRequestError as error:
            return error
        except Exception as error:  # a template is a program by the model's author and may raise anything
            if _is_of_every_conversation(error):
                raise InvalidRequestError(
                    f"The model's chat template cannot be used: {type(error).__name__}: {error}"
                ) from error
            return InvalidRequestError(
                f"The model's chat template refused the messages: {type(error).__name__}: {error}"
            )
        return ids

    def _rendered(self, conversation: list[dict[str, Any]], *, tools: Sequence[Mapping[str, Any]] | None) -> list[int]:
        options = self._options
        # The template writes its own special tokens; tokenizing its text again could add a second BOS.
        ids: list[int] = self._tokenizer.apply_chat_template(
            conversation,
            tools=None if tools is None else [dict(tool) for tool in tools],
            chat_template=options.chat_template,
            add_generation_prompt=options.add_generation_prompt,
            continue_final_message=options.continue_final_message,
            tokenize=True,
            return_dict=False,
        )
        return ids


def _check_tools(tools: object) -> None:
    if not isinstance(tools, Sequence) or isinstance(tools, str) or not tools:
        raise InvalidRequestError(f"tools is {reprlib.repr(tools)}; give a list of at least one tool, or leave it out.")
    for tool in tools:
        if not isinstance(tool, Mapping) or not isinstance(tool.get("function"), Mapping):
            raise InvalidRequestError(
                f"tools holds {reprlib.repr(tool)}; a tool is a dict with type 'function' and a function, a dict with "
                "name, description and parameters."
            )


def _is_of_every_conversation(error: Exception) -> bool:
    """Tell whether a chat template raises this error for all messages."""
    # By name: only transformers imports jinja2, and reports if it is missing or too old.
    kinds = {kind.__name__ for kind in type(error).__mro__}
    return not kinds.isdisjoint({"ImportError", "TemplateSyntaxError"})
