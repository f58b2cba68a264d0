"""Renders conversations with a chat template as transformers does, without what its wrapper costs for each.

Knows no model, no marks and no tools' forms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

_PLAIN_METHOD = "PreTrainedTokenizerBase.apply_chat_template"
"""A tokenizer whose class has one of its own has its reasons."""

_PLAIN_FIELDS = frozenset({"role", "content", "name"})
"""Of a message that transformers hands to a template as it is, where they are texts; it rewrites others first."""


class TemplateRenderer:
    """Safe to use from several threads."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        method = getattr(type(tokenizer), "apply_chat_template", None)
        self._compile = _compiler() if getattr(method, "__qualname__", "") == _PLAIN_METHOD else None
        self._names: Mapping[str, str] = {} if self._compile is None else dict(tokenizer.special_tokens_map)
        self._known: dict[str, dict[str, Any]] = {}  # by template: what it may call, and the names of special tokens

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Any, *, template: str | None = None) -> str:
        """Return what the model's template, or another, makes of a conversation and the beginning of its answer.

        Raises whatever it raises.
        """
        if self._compile is not None and tools is None and all(map(_is_plain, messages)):
            return self._render_plain(self._compile, template or self._tokenizer.get_chat_template(), list(messages))
        other = {} if template is None else {"chat_template": template}
        return str(
            self._tokenizer.apply_chat_template(
                list(messages), tools=tools, add_generation_prompt=True, tokenize=False, **other
            )
        )

    def _render_plain(
        self, compile_template: Callable[[str], Any], template: str, messages: Sequence[Mapping[str, Any]]
    ) -> str:
        """Do what the template's own `render` does, which gathers what is known anew for each conversation."""
        compiled = compile_template(template)
        if template not in self._known:
            self._known[template] = dict(compiled.globals) | dict(self._names)
        given = {"messages": messages, "tools": None, "documents": None, "add_generation_prompt": True}
        context = compiled.new_context(self._known[template] | given, shared=True)
        return str(compiled.environment.concat(compiled.root_render_func(context)))


def _is_plain(message: Mapping[str, Any]) -> bool:
    return type(message) is dict and message.keys() <= _PLAIN_FIELDS and all(type(t) is str for t in message.values())


def _compiler() -> Callable[[str], Any] | None:
    """Return what transformers itself compiles templates with, and keeps them; None where it has none of that name."""
    try:
        from transformers.utils import chat_template_utils  # noqa: PLC0415 - a tokenizer has loaded it by now
    except ImportError:
        return None
    return getattr(chat_template_utils, "_compile_jinja_template", None)
