"""Constrain an output to calls: for each form the grammar of what its models write. Reads none; knows no tokenizer."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from engine.structured import StructuredOutput
from jobs.body_checks import BodyError
from jobs.body_tools import Choice, ToolUse
from workers.argument_schemas import json_rule
from workers.call_forms import DEEPSEEK_CALL, DEEPSEEK_CALLS, DEEPSEEK_SEPARATOR, CallForm
from workers.pythonic_calls import pythonic_arguments
from workers.xml_calls import xml_arguments


def constraint(form: CallForm, tool_use: ToolUse, special_ids: Mapping[str, int]) -> StructuredOutput | None:
    """Return the grammar of an output that only calls tools, None where the model may choose.

    `special_ids` are the tokens that the tokenizer never makes of plain text: a mark that is one of them is written as
    that token. Raises BodyError where a function's parameters cannot be kept in this form.
    """
    if tool_use.choice is not Choice.REQUIRED:
        return None
    layout = _LAYOUTS[form]

    def written(parts: tuple[str, ...]) -> str:
        return " ".join(_literal(part, special_ids) for part in parts)

    rest = f"({written(layout.between)} call)*" if tool_use.is_parallel and layout.between is not None else ""
    rules = [f"start: {written(layout.begin)} call {rest} {written(layout.end)}"]
    rules.append(f"call: {' | '.join(f'f{place}' for place in range(len(tool_use.callable)))}")
    for place, tool in enumerate(tool_use.callable):
        function = function_of(tool)
        before = tuple(part.replace(_NAME, function["name"]) for part in layout.before)
        rules.append(f"f{place}: {written(before)} a{place} {written(layout.after)}")
        try:
            rules += layout.arguments(f"a{place}", function)
        except RecursionError:
            message = f"the parameters of the function {function['name']} are nested too deeply; make them simpler"
            raise BodyError("tools", message, code="unsupported_structure") from None
    return StructuredOutput(grammar="\n".join([*rules, ""]))


def function_of(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    function: Mapping[str, Any] = tool["function"]
    return function


def _literal(text: str, special_ids: Mapping[str, int]) -> str:
    return f"<[{special_ids[text]}]>" if text in special_ids else json.dumps(text)


def _json_arguments(rule: str, function: Mapping[str, Any]) -> list[str]:
    """Write a function's schema, as a rule of its own so that its references stay right; without one, no arguments."""
    return [f"{rule}: {json_rule(function.get('parameters') or {'type': 'object', 'additionalProperties': False})}"]


_NAME: Final = "{name}"
_JSON: Final = '{"name": "{name}", "arguments": '


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """What stands around the arguments of a call, around all calls and between two of them.

    Marks that may be tokens of their own are parts of their own. `between` is None where one call is all.
    """

    before: tuple[str, ...]
    after: tuple[str, ...]
    begin: tuple[str, ...] = ()
    between: tuple[str, ...] | None = ()
    end: tuple[str, ...] = ()
    arguments: Callable[[str, Mapping[str, Any]], list[str]] = _json_arguments


def _json_list(*begin: str) -> _Layout:
    return _Layout(begin=(*begin, "["), before=(_JSON,), after=("}",), between=(", ",), end=("]",))


_LAYOUTS: Final = {
    CallForm.HERMES: _Layout(before=("<tool_call>", "\n" + _JSON), after=("}\n", "</tool_call>"), between=("\n",)),
    CallForm.LLAMA: _Layout(before=('{"name": "{name}", "parameters": ',), after=("}",), between=None),
    CallForm.PYTHONIC: _Layout(
        begin=("[",), before=("{name}(",), after=(")",), between=(", ",), end=("]",), arguments=pythonic_arguments
    ),
    CallForm.MISTRAL: _json_list("[TOOL_CALLS]"),
    CallForm.MISTRAL_NAMED: _Layout(before=("[TOOL_CALLS]", _NAME, "[ARGS]"), after=()),
    CallForm.GRANITE: _json_list("<|tool_call|>"),
    CallForm.PHI: _Layout(before=("<|tool_call|>", _JSON), after=("}", "<|/tool_call|>")),
    CallForm.FUNCTOOLS: _json_list("functools"),
    CallForm.DEEPSEEK: _Layout(
        begin=DEEPSEEK_CALLS[:1],
        before=(DEEPSEEK_CALL[0], "function", DEEPSEEK_SEPARATOR, "{name}\n```json\n"),
        after=("\n```", DEEPSEEK_CALL[1]),
        between=("\n",),
        end=DEEPSEEK_CALLS[1:],
    ),
    CallForm.DEEPSEEK_NAMED: _Layout(
        begin=DEEPSEEK_CALLS[:1],
        before=(DEEPSEEK_CALL[0], _NAME, DEEPSEEK_SEPARATOR),
        after=DEEPSEEK_CALL[1:],
        end=DEEPSEEK_CALLS[1:],
    ),
    CallForm.XML: _Layout(
        before=("<tool_call>", "\n<function={name}>\n"),
        after=("</function>\n", "</tool_call>"),
        between=("\n",),
        arguments=xml_arguments,
    ),
}
