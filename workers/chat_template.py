"""A model's chat template: renders conversations, past tool calls included, and tells the model's form of calls.

Templates are arbitrary programs and may raise anything; that becomes a BodyError. Only templates write special tokens:
the same words in a user's text stay text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from jobs.lines.body_checks import BodyError
from workers.special_tokens import Check, SpecialTokenizer, UserTexts
from workers.template_renderer import TemplateRenderer
from workers.tool_calls.forms import SHORT_ID_FORMS, CallForm, form_of
from workers.tool_calls.history import (
    HISTORY_FORMS,
    KEEPING_NULLS,
    HistoryForm,
    Message,
    NoText,
    has_calls,
    has_ids,
    with_marks,
    with_short_ids,
)
from workers.tool_calls.writing import function_of

Tools = list[dict[str, Any]] | None
"""In the form that chat templates expect."""


class TemplatedTokenizer(SpecialTokenizer, Protocol):
    """The methods of a transformers tokenizer that a chat template needs."""

    def apply_chat_template(self, conversation: Sequence[Mapping[str, Any]], **kwargs: Any) -> Any: ...
    def get_chat_template(self, *, tools: Tools = ...) -> str: ...


class ChatTemplate:
    """Renders prompts. The template writes the special tokens, so none are added to its prompts (no double BOS)."""

    def __init__(self, tokenizer: TemplatedTokenizer) -> None:
        self._tokenizer = tokenizer
        self._renderer = TemplateRenderer(tokenizer)
        self._texts: dict[str, UserTexts] = {}  # by template: a model may have a separate one for tools

    def call_form(self, tools: Tools) -> CallForm | None:
        """Return the form of the model's tool calls; None if the template has no tools or its form is unknown."""
        try:
            return form_of(self._tokenizer.get_chat_template(tools=tools))
        except ValueError:  # no template, or several without a default
            return None

    def prompt(self, messages: Sequence[Message], tools: Tools, *, check: Check = lambda _: None) -> list[int]:
        """Return the prompt of a conversation. Raise BodyError if the template refuses it.

        `check` is called with the text before it is encoded, and raises if the text is too long.
        """
        if has_ids(messages) and self.call_form(tools) in SHORT_ID_FORMS:
            messages = with_short_ids(messages)
        if has_calls(messages):
            return self._with_past_calls(messages, tools, check)
        try:
            rendered = self._rendered(messages, tools)
        except Exception as error:  # noqa: BLE001 - a template is an arbitrary program and may raise anything
            message = f"the model's chat template refused the messages: {_named(error)}"
            raise BodyError("messages", message) from None
        return self._user_texts(tools).encode(rendered, check)

    def _with_past_calls(self, messages: Sequence[Message], tools: Tools, check: Check) -> list[int]:
        """Return the prompt in the first history form in which the template shows all calls."""
        marked, marks = with_marks(messages)
        refusals = []
        for form in HISTORY_FORMS:
            try:
                text = self._apply(form.rewrite(marked), tools, form=form)
                if not all(mark in text for mark in marks):
                    continue
                rendered = self._rendered(form.rewrite(messages), tools, form=form)
            except Exception as error:  # noqa: BLE001 - as above; another form may work
                refusals.append(_named(error))
            else:
                return self._user_texts(tools).encode(rendered, check)
        reason = refusals[0] if len(refusals) == len(HISTORY_FORMS) else "it leaves them out"
        raise BodyError("messages", f"the model's chat template cannot show past tool calls: {reason}")

    def _rendered(self, messages: Sequence[Message], tools: Tools, *, form: HistoryForm | None = None) -> str:
        texts = self._user_texts(tools)
        return self._apply(texts.broken(messages), texts.broken_tools(tools), form=form)

    def _user_texts(self, tools: Tools) -> UserTexts:
        template = self._tokenizer.get_chat_template(tools=tools)
        if template not in self._texts:
            self._texts[template] = UserTexts(self._tokenizer, template=template)
        return self._texts[template]

    def _apply(self, messages: Sequence[Message], tools: Tools, *, form: HistoryForm | None) -> str:
        """Return a conversation as the chat template renders it; the template may raise anything."""
        if form is not None and form.no_text is NoText.NULL:
            return self._renderer.render(
                messages, tools, template=KEEPING_NULLS + self._tokenizer.get_chat_template(tools=tools)
            )
        return self._renderer.render(messages, tools)


def for_template(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the tools in the form that chat templates expect: with description and parameters, without nulls."""
    empty = {"description": "", "parameters": {"type": "object"}}
    return [{"type": "function", "function": empty | _without_nulls(function_of(tool))} for tool in tools]


def _without_nulls(function: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in function.items() if value is not None}


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
