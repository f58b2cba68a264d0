"""A model's chat template: renders conversations, past tool calls included, and tells the model's form of calls.

Templates are arbitrary programs and may raise anything; that becomes a BodyError. Only templates write special tokens:
the same words in a user's text stay text.
"""

from __future__ import annotations

import functools
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from engine.thoughts import Thoughts
from jobs.lines.body_checks import BodyError
from jobs.lines.body_template import BUDGET, CONTINUE, PLAIN_USE, TemplateUse
from workers.special_tokens import Check, SpecialTokenizer, UserTexts
from workers.template_renderer import TemplateRenderer
from workers.thinking.marks import PromptEnd, marks_of
from workers.thinking.variables import TemplateVariables
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

_CONTINUED = "".join(chr(0xE000 + secrets.randbelow(0x1900)) for _ in range(10))
"""Behind a message that the answer continues, while it is rendered: the prompt ends there. No text contains it."""

Tools = list[dict[str, Any]] | None
"""In the form that chat templates expect."""


class TemplatedTokenizer(SpecialTokenizer, Protocol):
    """The methods of a transformers tokenizer that a chat template needs."""

    def apply_chat_template(self, conversation: Sequence[Mapping[str, Any]], **kwargs: Any) -> Any: ...
    def get_chat_template(self, *, tools: Tools = ...) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatPrompt:
    """The prompt of a conversation."""

    token_ids: list[int]
    thoughts: Thoughts | None
    """The thoughts of its answers; None if they have none, or no marks of them."""
    forbidden_token_ids: tuple[int, ...] = ()
    """Tokens that would begin thoughts, where there shall be none and the prompt does not exclude them."""
    is_forged: Callable[[], bool]
    """Whether a reader of the prompt's text alone would take marks in users' texts for special tokens."""


class ChatTemplate:
    """Renders prompts. The template writes the special tokens, so none are added to its prompts (no double BOS)."""

    def __init__(self, tokenizer: TemplatedTokenizer) -> None:
        self._tokenizer = tokenizer
        self._renderer = TemplateRenderer(tokenizer)
        self._sources: dict[str, _Source] = {}  # by template: a model may have a separate one for tools

    def call_form(self, tools: Tools) -> CallForm | None:
        """Return the form of the model's tool calls; None if the template has no tools or its form is unknown."""
        try:
            return form_of(self._tokenizer.get_chat_template(tools=tools))
        except ValueError:  # no template, or several without a default
            return None

    def prompt(
        self,
        messages: Sequence[Message],
        tools: Tools,
        *,
        use: TemplateUse = PLAIN_USE,
        check: Check = lambda _: None,
    ) -> ChatPrompt:
        """Return the prompt of a conversation. Raise BodyError if the template refuses it, or reads no such variable.

        `check` is called with the text before it is encoded, and raises if the text is too long.
        """
        if has_ids(messages) and self.call_form(tools) in SHORT_ID_FORMS:
            messages = with_short_ids(messages)
        with _template_errors():
            source = self._source(tools)
            talk = _Talk(
                messages=messages,
                tools=tools,
                variables=source.texts.broken_variables(source.checked_variables(use)),
                continues=use.continues,
            )
            rendered = self._with_past_calls(talk, source) if has_calls(messages) else self._rendered(talk, source)
            rendered, thoughts, forbidden = source.ended(rendered, use)
        token_ids = source.texts.encode(rendered, check)
        return ChatPrompt(
            token_ids=token_ids,
            thoughts=thoughts,
            forbidden_token_ids=forbidden,
            is_forged=partial(source.texts.forged, rendered, token_ids),
        )

    def _with_past_calls(self, talk: _Talk, source: _Source) -> str:
        """Return a conversation in the first history form in which the template shows all calls."""
        marked, marks = with_marks(talk.messages)
        refusals = []
        for form in HISTORY_FORMS:
            try:
                text = self._apply(replace(talk, messages=form.rewrite(marked)), source, form=form)
                if not all(mark in text for mark in marks):
                    continue
                return self._rendered(replace(talk, messages=form.rewrite(talk.messages)), source, form=form)
            except BodyError:
                raise
            except Exception as error:  # noqa: BLE001 - a template may raise anything; another form may work
                refusals.append(_named(error))
        reason = refusals[0] if len(refusals) == len(HISTORY_FORMS) else "it leaves them out"
        raise BodyError("messages", f"the model's chat template cannot show past tool calls: {reason}")

    def _rendered(self, talk: _Talk, source: _Source, *, form: HistoryForm | None = None) -> str:
        """Render a conversation with no mark in its texts; one that is continued ends with its last message."""
        broken = source.texts.broken(talk.messages)
        if talk.continues:
            broken[-1] = {**broken[-1], "content": broken[-1]["content"] + _CONTINUED}
        tools = source.texts.broken_tools(talk.tools)
        rendered = self._apply(replace(talk, messages=broken, tools=tools), source, form=form)
        if not talk.continues:
            return rendered
        text, found, _ = rendered.rpartition(_CONTINUED)
        if not found:
            raise BodyError(CONTINUE, f"{CONTINUE} is true and the model's chat template leaves the last message out")
        return text

    def _source(self, tools: Tools) -> _Source:
        template = self._tokenizer.get_chat_template(tools=tools)
        if template not in self._sources:
            self._sources[template] = _Source(self._tokenizer, template)
        return self._sources[template]

    def _apply(self, talk: _Talk, source: _Source, *, form: HistoryForm | None) -> str:
        """Return a conversation as the chat template renders it; the template may raise anything."""
        template = None
        if form is not None and form.no_text is NoText.NULL:
            template = KEEPING_NULLS + self._tokenizer.get_chat_template(tools=talk.tools)
        return self._renderer.render(
            source.with_thoughts(talk.messages),
            talk.tools,
            template=template,
            variables=talk.variables,
            begins_answer=not talk.continues,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Talk:
    """A conversation to be rendered."""

    messages: Sequence[Message]
    tools: Tools
    variables: Mapping[str, Any]
    continues: bool


class _Source:
    """One template of a model: its marks, its variables, and the texts that may be put into it."""

    def __init__(self, tokenizer: TemplatedTokenizer, template: str) -> None:
        self.texts = UserTexts(tokenizer, template=template)
        self._marks = marks_of(template, tokenizer)
        self._template = template
        self._special_tokens = getattr(tokenizer, "special_tokens_map", {})

    @functools.cached_property
    def _variables(self) -> TemplateVariables:
        return TemplateVariables(self._template, special_tokens=self._special_tokens)

    def checked_variables(self, use: TemplateUse) -> Mapping[str, Any]:
        """Return the variables of a line; without thoughts the template's own switch is off. Raise BodyError."""
        if not use.variables and use.budget != 0:  # most lines need no template to be parsed
            return {}
        self._check_names(use)
        return {**self._variables.off, **use.variables} if use.budget == 0 else use.variables

    def _check_names(self, use: TemplateUse) -> None:
        names = self._variables.names
        for name in use.variables.keys() - names:
            param = use.params[name]
            shown = param if param == name else f"{param}.{name}"
            known = f"it reads {', '.join(sorted(names))}" if names else "it reads none"
            message = f"{shown} is no variable of this model's chat template ({known}); remove it"
            raise BodyError(shown, message, code="unsupported_parameter")

    def with_thoughts(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Return the conversation with past thoughts where the template reads them.

        A template that reads none leaves past thoughts out, as it does with those of its own marks.
        """
        if not any("reasoning_content" in message for message in messages):
            return messages  # most lines need no template to be parsed
        return [self._variables.with_thoughts(message) for message in messages]

    def ended(self, rendered: str, use: TemplateUse) -> tuple[str, Thoughts | None, tuple[int, ...]]:
        """Return a prompt with its thoughts ended if there shall be none, its answers' thoughts, and forbidden tokens.

        Raise BodyError for a budget of thoughts that have no marks.
        """
        marks = self._marks
        if marks is None:
            if use.budget:
                message = f"{BUDGET} is {use.budget} and this model's chat template has no marks of thoughts; remove it"
                raise BodyError(BUDGET, message, code="unsupported_parameter")
            return rendered, None, ()
        end = marks.prompt_end(rendered, continues=use.continues)
        if use.budget != 0:
            return rendered, marks.thoughts(rendered, end, budget=use.budget), ()
        if end is PromptEnd.INSIDE or (end is PromptEnd.BEFORE and marks.tokens.are_channels):
            return rendered + marks.closing, None, ()
        return rendered, None, marks.tokens.begin if end is PromptEnd.BEFORE else ()


def for_template(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the tools in the form that chat templates expect: with description and parameters, without nulls."""
    empty = {"description": "", "parameters": {"type": "object"}}
    return [{"type": "function", "function": empty | _without_nulls(function_of(tool))} for tool in tools]


def _without_nulls(function: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in function.items() if value is not None}


@contextmanager
def _template_errors() -> Iterator[None]:
    """Turn whatever a template raises, as it is an arbitrary program, into a BodyError."""
    try:
        yield
    except BodyError:
        raise
    except Exception as error:  # noqa: BLE001 - as above
        message = f"the model's chat template refused the messages: {_named(error)}"
        raise BodyError("messages", message) from None


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
