"""Finds the calls of allowed functions in a model's output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jobs.lines.body_tools import ToolUse
from jobs.lines.responses import ToolCall
from workers.tool_calls.forms import SHORT_ID_FORMS, CallForm, MalformedCall
from workers.tool_calls.json_texts import as_json
from workers.tool_calls.reading import read_calls
from workers.tool_calls.writing import function_of


@dataclass(frozen=True, slots=True, kw_only=True)
class CallReader:
    """Finds the calls in an output."""

    form: CallForm
    names: frozenset[str]
    """Functions that may be called."""
    is_parallel: bool
    """False: only the first call counts."""
    schemas: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, compare=False, repr=False)
    """The parameters of those functions that have any."""

    @classmethod
    def of(cls, form: CallForm, tool_use: ToolUse) -> CallReader:
        functions = [function_of(tool) for tool in tool_use.callable]
        schemas = {function["name"]: function["parameters"] for function in functions if function.get("parameters")}
        names = frozenset(function["name"] for function in functions)
        return cls(form=form, names=names, is_parallel=tool_use.is_parallel, schemas=schemas)

    def read(self, text: str) -> tuple[str, list[ToolCall]] | None:
        """Return the text beside the calls and the calls; None if there are none or one is malformed.

        `text` is the output with its special tokens.
        """
        try:
            content, written = read_calls(self.form, text, self.schemas)
            calls = [self._call(one) for one in written]
        except (MalformedCall, RecursionError):  # a schema may list values that are nested too deeply
            return None
        if not calls:
            return None
        return content.strip(), calls if self.is_parallel else calls[:1]

    def _call(self, written: Any) -> ToolCall:
        name = written.get("name") if isinstance(written, dict) else None
        if not isinstance(name, str) or name not in self.names:
            raise MalformedCall
        arguments = written.get("arguments", written.get("parameters"))
        if not isinstance(arguments, dict):
            raise MalformedCall
        return ToolCall(name=name, arguments=as_json(arguments), has_short_id=self.form in SHORT_ID_FORMS)
