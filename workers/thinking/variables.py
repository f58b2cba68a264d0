"""The variables that a chat template takes from outside, and the fields of past thoughts that it reads."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from jinja2 import meta, nodes

from jobs.lines.body_template import OWN_VARIABLES
from workers.template_renderer import environment

_TESTS = frozenset({"defined", "undefined"})
_SWITCHES = {"enable_thinking": False, "thinking": False, "thinking_budget": 0}
"""Names under which templates let thoughts be switched off, most frequent first, with the value that does so."""
_THOUGHT_FIELDS = ("reasoning_content", "reasoning", "thinking")
_THOUGHT_PART = re.compile(r"""['".]type\b['"]?\s*\]?\s*==\s*['"]thinking['"]""")
"""In templates that read a list of parts as a message's content, one of which holds its thoughts (Mistral's)."""


class TemplateVariables:
    """What one template reads, found in its source."""

    def __init__(self, template: str, *, special_tokens: Mapping[str, Any]) -> None:
        tree = environment().parse(template)
        stored = {one.name for one in tree.find_all(nodes.Name) if one.ctx == "store"}
        # A name that the template also sets is only taken from outside where the template asks whether it is there.
        own = OWN_VARIABLES | special_tokens.keys() | (stored - _asked_for(tree))
        self.names = frozenset(meta.find_undeclared_variables(tree)) - own
        """The names of variables that a line may set."""
        self._thought_fields = tuple(name for name in _THOUGHT_FIELDS if _reads_field(template, name))
        # A part's own field has the last of these names; a template that reads another one too needs no parts.
        has_part = _THOUGHT_PART.search(template) is not None
        self._has_thought_parts = has_part and self._thought_fields == _THOUGHT_FIELDS[-1:]

    @property
    def off(self) -> Mapping[str, Any]:
        """Return the variable that switches thoughts off, with its value; empty without one."""
        return dict([one for one in _SWITCHES.items() if one[0] in self.names][:1])

    def with_thoughts(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a message with its thoughts where the template reads them; without them if it reads none."""
        if "reasoning_content" not in message:
            return message
        kept = {name: value for name, value in message.items() if name != "reasoning_content"}
        thoughts = message["reasoning_content"]
        if not self._has_thought_parts:
            return kept | dict.fromkeys(self._thought_fields, thoughts)
        text = [{"type": "text", "text": kept["content"]}] if kept["content"] else []
        return kept | {"content": [{"type": "thinking", "thinking": thoughts}, *text]}


def _asked_for(tree: nodes.Template) -> set[str]:
    """Return the names that the template asks whether they are defined; those of a macro's arguments are its own."""
    macros = list(tree.find_all(nodes.Macro))
    arguments = {id(name) for macro in macros for name in _asked(macro) if name.name in _arguments(macro)}
    return {name.name for name in _asked(tree) if id(name) not in arguments}


def _asked(tree: nodes.Node) -> list[nodes.Name]:
    asked = [test.node for test in tree.find_all(nodes.Test) if test.name in _TESTS]
    asked += [one.node for one in tree.find_all(nodes.Filter) if one.name in ("default", "d") and one.node is not None]
    return [node for node in asked if isinstance(node, nodes.Name)]


def _arguments(macro: nodes.Macro) -> set[str]:
    return {argument.name for argument in macro.args}


def _reads_field(template: str, name: str) -> bool:
    """Tell whether a template reads this field of a message: `message.name`, `message['name']`, `'name' in message`."""
    quoted = rf"['\"]{name}['\"]"
    return re.search(rf"\.{name}\b|\[\s*{quoted}\s*\]|{quoted}\s+in\b|get\(\s*{quoted}", template) is not None
