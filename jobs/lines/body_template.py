"""Checks of what a chat line tells the model's chat template, and of how far its answer may think.

Pure; the worker knows the template, and refuses by name what it does not read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jobs.lines.body_checks import BodyError, Check, flag, object_, whole, wrong
from protocol.sampling import MAX_INT

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""Values of `reasoning_effort` in use; a template may know fewer, and say so."""

VARIABLES = "chat_template_kwargs"
EFFORT = "reasoning_effort"
BUDGET = "thinking_token_budget"
CONTINUE = "continue_final_message"
GENERATION_PROMPT = "add_generation_prompt"
TRUNCATE = "truncate_prompt_tokens"

OWN_VARIABLES = frozenset({"messages", "tools", "documents", GENERATION_PROMPT, CONTINUE})
"""Variables of templates that other parts of a line set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateUse:
    """How a conversation is rendered, and how far its answer may think."""

    variables: Mapping[str, Any] = field(default_factory=dict)
    """Of the template, `reasoning_effort` among them."""
    params: Mapping[str, str] = field(default_factory=dict)
    """The parameter that gave each variable, for errors."""
    continues: bool = False
    """Whether the answer continues the last message."""
    budget: int | None = None
    """The most tokens of thoughts; 0 means none at all."""


PLAIN_USE = TemplateUse()


def template_variables(name: str, value: Any) -> Mapping[str, Any]:
    """Check an object of variables of the template. Raises BodyError for one that the line sets by itself."""
    for key in object_(name, value):
        if key in OWN_VARIABLES:
            raise BodyError(f"{name}.{key}", f"{name}.{key} is set by the line itself; remove it")
    return dict(value)


def effort(name: str, value: Any) -> str:
    if type(value) is not str or value not in EFFORTS:
        raise wrong(name, value, f"one of {', '.join(EFFORTS)}")
    return value


def truncation(name: str, value: Any) -> int:
    """Check the most tokens of a prompt; −1 stands for as many as the context has beside the answer."""
    if value == -1 and type(value) is int:
        return -1
    if type(value) is int and value < 1:
        raise wrong(name, value, "−1 or a whole number from 1")
    return int(whole(1)(name, value))


def template_use(values: Mapping[str, Any]) -> TemplateUse:
    """Combine a chat body's checked parameters. Raises BodyError for two that contradict each other."""
    variables = dict(values.get(VARIABLES, {}))
    params = dict.fromkeys(variables, VARIABLES)
    if EFFORT in values:
        if variables.get(EFFORT, values[EFFORT]) != values[EFFORT]:
            message = f"{EFFORT} is {values[EFFORT]!r} and {VARIABLES} has {variables[EFFORT]!r}; give one of them"
            raise BodyError(EFFORT, message)
        variables[EFFORT], params[EFFORT] = values[EFFORT], EFFORT
    return TemplateUse(variables=variables, params=params, continues=_continues(values), budget=values.get(BUDGET))


def _continues(values: Mapping[str, Any]) -> bool:
    continues, begins = values.get(CONTINUE, False), values.get(GENERATION_PROMPT)
    if continues and begins:
        raise BodyError(CONTINUE, f"{CONTINUE} and {GENERATION_PROMPT} are both true; give one of them")
    if not continues and begins is False:
        message = f"{GENERATION_PROMPT} is false without {CONTINUE}; an answer then has no beginning. Remove it"
        raise BodyError(GENERATION_PROMPT, message, code="unsupported_parameter")
    if continues:
        _check_last(values["messages"])
    return bool(continues)


def _check_last(messages: Sequence[Mapping[str, Any]]) -> None:
    """Raise BodyError unless the last message is an assistant's text."""
    last = messages[-1]
    if last["role"] != "assistant":
        role = last["role"]
        raise BodyError(CONTINUE, f'{CONTINUE} is true and the last message is of role "{role}"; it must be assistant')
    if not last["content"] or "tool_calls" in last:
        raise BodyError(CONTINUE, f"{CONTINUE} is true and the last message has no text, or calls tools; give its text")


TEMPLATE: dict[str, Check] = {
    VARIABLES: template_variables,
    EFFORT: effort,
    BUDGET: whole(0, MAX_INT),
    CONTINUE: flag,
    GENERATION_PROMPT: flag,
}
"""Parameters of chats."""
