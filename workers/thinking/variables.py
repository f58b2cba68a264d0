"""The variables that a chat template takes from outside, and the fields of past thoughts that it reads."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from jinja2 import meta, nodes

from jobs.lines.body_template import OWN_VARIABLES
from workers.template_renderer import environment

_TESTS = frozenset({"defined", "undefined"})
_SWITCHES = ("enable_thinking", "thinking")
"""Names under which templates let thoughts be switched off, most frequent first."""
_THOUGHT_FIELDS = ("reasoning_content", "reasoning", "thinking")


class TemplateVariables:
    """What one template reads, found in its source."""

    def __init__(self, template: str, *, special_tokens: Mapping[str, Any]) -> None:
        tree = environment().parse(template)
        stored = {one.name for one in tree.find_all(nodes.Name) if one.ctx == "store"}
        # A name that the template also sets is only taken from outside where the template asks whether it is there.
        own = OWN_VARIABLES | special_tokens.keys() | (stored - _asked_for(tree))
        self.names = frozenset(meta.find_undeclared_variables(tree)) - own
        """The names of variables that a line may set."""
        self.thought_fields = tuple(name for name in _THOUGHT_FIELDS if _reads_field(template, name))
        """The fields of a message that hold its thoughts."""

    @property
    def switch(self) -> str | None:
        """Return the variable that switches thoughts off when it is false; None without one."""
        return next((name for name in _SWITCHES if name in self.names), None)


def _asked_for(tree: nodes.Template) -> set[str]:
    """Return the names that the template asks whether they are defined."""
    asked = [test.node for test in tree.find_all(nodes.Test) if test.name in _TESTS]
    asked += [one.node for one in tree.find_all(nodes.Filter) if one.name in ("default", "d") and one.node is not None]
    return {node.name for node in asked if isinstance(node, nodes.Name)}


def _reads_field(template: str, name: str) -> bool:
    """Tell whether a template reads this field of a message: `message.name`, `message['name']`, `'name' in message`."""
    quoted = rf"['\"]{name}['\"]"
    return re.search(rf"\.{name}\b|\[\s*{quoted}\s*\]|{quoted}\s+in\b|get\(\s*{quoted}", template) is not None
