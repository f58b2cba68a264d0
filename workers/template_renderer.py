"""Renders conversations with a chat template as transformers does, without the overhead of its wrapper."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from jinja2 import Environment

_PLAIN_METHOD = "PreTrainedTokenizerBase.apply_chat_template"
"""A tokenizer whose class overrides this method is called through its own."""

_PLAIN_FIELDS = frozenset({"role", "content", "name"})
"""Fields that, as texts, transformers passes to a template unchanged; it rewrites other messages first."""


class TemplateRenderer:
    """Renders conversations; safe to use from several threads."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        method = getattr(type(tokenizer), "apply_chat_template", None)
        self._compile = _compiler() if getattr(method, "__qualname__", "") == _PLAIN_METHOD else None
        self._names: Mapping[str, str] = {} if self._compile is None else dict(tokenizer.special_tokens_map)
        self._known: dict[str, dict[str, Any]] = {}  # by template: its globals and the names of special tokens

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Any,
        *,
        template: str | None = None,
        variables: Mapping[str, Any] = MappingProxyType({}),
        begins_answer: bool = True,
    ) -> str:
        """Render a conversation and the start of its answer with the model's template or `template`.

        `variables` are further ones of the template, which may raise anything.
        """
        others = {**variables, "add_generation_prompt": begins_answer}
        if self._compile is not None and tools is None and all(map(_is_plain, messages)):
            source = template or self._tokenizer.get_chat_template()
            return self._render_plain(self._compile, source, list(messages), others)
        if template is not None:
            others["chat_template"] = template
        return str(self._tokenizer.apply_chat_template(list(messages), tools=tools, tokenize=False, **others))

    def _render_plain(
        self,
        compile_template: Callable[[str], Any],
        template: str,
        messages: Sequence[Mapping[str, Any]],
        others: Mapping[str, Any],
    ) -> str:
        """Do what the template's own `render` does, which collects the globals anew for each conversation."""
        compiled = compile_template(template)
        if template not in self._known:
            self._known[template] = dict(compiled.globals) | dict(self._names)
        variables = {"messages": messages, "tools": None, "documents": None, **others}
        context = compiled.new_context(self._known[template] | variables, shared=True)
        return str(compiled.environment.concat(compiled.root_render_func(context)))


def _is_plain(message: Mapping[str, Any]) -> bool:
    return type(message) is dict and message.keys() <= _PLAIN_FIELDS and all(type(t) is str for t in message.values())


def environment() -> Environment:
    """Return an environment that parses chat templates: transformers' own, with its tags, or else a plain one."""
    compile_template = _compiler()
    if compile_template is None:
        return Environment(extensions=["jinja2.ext.loopcontrols"])
    made: Environment = compile_template("").environment
    return made


def _compiler() -> Callable[[str], Any] | None:
    """Return transformers' own cached template compiler; None if it has no function of that name."""
    try:
        from transformers.utils import chat_template_utils  # noqa: PLC0415 - a tokenizer has loaded it by now
    except ImportError:
        return None
    return getattr(chat_template_utils, "_compile_jinja_template", None)
