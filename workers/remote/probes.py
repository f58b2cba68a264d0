"""Tiny requests that show what a server does with a parameter: each has an effect that can be seen in its answer.

Pure: requests and judgements. A server that ignores a parameter in silence is told apart from one that knows it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import orjson

from jobs.lines.endpoints import LineKind
from jobs.lines.needs import NOTHING, Need
from workers.remote.dialects import Dialect

MAX_TOKENS = 2000
"""Tokens of prompts and answers that all probes of an engine may use."""
_ANSWER_TOKENS = 12
_THINKING_TOKENS = 256
"""For the answer of a model that thinks first."""
_TEMPLATE_TOKENS = 32
"""Assumed for a prompt, with its template, until an answer tells."""
_TOOL_TOKENS = 160
"""What the description of a tool may add."""


class Seen(StrEnum):
    """What was seen of a capability."""

    YES = "yes"
    NO = "no"  # answered as if the parameter were not there
    ABSENT = "absent"  # refused
    LATE = "late"  # no whole answer in time
    NEVER = "never"  # no answer


CONCLUSIVE = frozenset({Seen.YES, Seen.NO, Seen.ABSENT})
"""With the others the capability is probed again soon; until then what was known of it stays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What came back."""

    seen: Seen
    """YES: an answer, which is yet to be judged."""
    body: Mapping[str, Any]

    @property
    def choice(self) -> Mapping[str, Any]:
        """Return the first choice; an empty one if there is none."""
        first = next(iter(_list(self.body.get("choices"))), None)
        return first if isinstance(first, dict) else {}

    @property
    def texts(self) -> list[str]:
        return [_text(choice) for choice in _list(self.body.get("choices")) if isinstance(choice, dict)]

    @property
    def text(self) -> str:
        return next(iter(self.texts), "")

    @property
    def content(self) -> str:
        """Return what stands where an answer does, without thoughts."""
        message = self.choice.get("message", self.choice)
        content = (message.get("content") or message.get("text")) if isinstance(message, dict) else None
        return content if isinstance(content, str) else ""

    @property
    def end(self) -> object:
        return self.choice.get("finish_reason")

    @property
    def thinks(self) -> bool:
        return bool(self.text) and not self.content

    def count(self, name: str) -> int | None:
        usage = self.body.get("usage")
        value = usage.get(name) if isinstance(usage, dict) else None
        return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What earlier answers showed."""

    is_chat: bool
    plain: Reply
    """The greedy answer to COUNTING, of as many tokens as `_ANSWER_TOKENS`."""
    greedy: Reply | None = None
    """The greedy answer to LETTERS."""

    @property
    def answer_tokens(self) -> int:
        return _THINKING_TOKENS if self.plain.thinks else 2 * _ANSWER_TOKENS


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One capability."""

    name: str
    need: Need
    """What it stands for; nothing: it is only recorded."""
    effect: str
    """What is to be seen, for the documentation."""
    requests: Callable[[Facts], Sequence[Mapping[str, Any]]]
    """Fields of each request beside the common ones; `prompt` is the text of its prompt, `path` if not the usual."""
    has_effect: Callable[[Sequence[Reply], Facts], bool]


COUNTING = "Count from 1 to 40, separated by commas."
LETTERS = "Write twenty random letters."
_ADVERSE = "Reply with the single word banana. Do not write JSON."
_SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}
_TOOL = {
    "type": "function",
    "function": {
        "name": "note",
        "description": "Keep a note.",
        "parameters": {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]},
    },
}


def body_of(fields: Mapping[str, Any], dialect: Dialect, *, model: str, is_chat: bool) -> tuple[str, dict[str, Any]]:
    """Return the path and the body of a request."""
    fields = dict(fields)
    path = fields.pop("path", "chat/completions" if is_chat else "completions")
    prompt, limit = fields.pop("prompt", COUNTING), fields.pop("max_tokens", _ANSWER_TOKENS)
    in_chat = path == "chat/completions"
    said = {"messages": [{"role": "user", "content": prompt}]} if in_chat else {"prompt": prompt}
    names = {dialect.token_limit if in_chat else "max_tokens": limit}
    return path, {"model": model, "stream": False, "temperature": 0.0, **dialect.neutral, **said, **names, **fields}


def most_tokens(fields: Mapping[str, Any], *, prompt_tokens: int | None) -> int:
    """Return about how many tokens a request uses at most; `prompt_tokens` are those of an earlier, similar prompt."""
    tools = _TOOL_TOKENS if "tools" in fields else 0
    answer = int(fields.get("max_tokens", _ANSWER_TOKENS)) * int(fields.get("n", 1))
    return (prompt_tokens or _TEMPLATE_TOKENS) + tools + answer


def _greedy(**fields: Any) -> Callable[[Facts], Sequence[Mapping[str, Any]]]:
    return lambda facts: [fields]


def _twice(facts: Facts) -> Sequence[Mapping[str, Any]]:
    return [{"prompt": LETTERS, "temperature": 1.0, "seed": 71}] * 2


def _is_repeated(replies: Sequence[Reply], facts: Facts) -> bool:
    return bool(replies[0].text) and replies[0].texts == replies[1].texts


def _stopped(facts: Facts) -> Sequence[Mapping[str, Any]]:
    return [{"stop": [_stop_of(facts)]}] if _stop_of(facts) else []


def _stop_of(facts: Facts) -> str:
    """Return a string of the middle of the plain answer, at which the same answer is to be cut."""
    text = facts.plain.text.strip()
    return text[len(text) // 2 :][:2].strip()


def _is_cut(replies: Sequence[Reply], facts: Facts) -> bool:
    stop = _stop_of(facts)
    return bool(replies) and stop not in replies[0].text and replies[0].end == "stop"


def _has_two(replies: Sequence[Reply], facts: Facts) -> bool:
    return len(_list(replies[0].body.get("choices"))) == 2


def _adverse(kind: Mapping[str, Any]) -> Callable[[Facts], Sequence[Mapping[str, Any]]]:
    return lambda facts: [{"prompt": _ADVERSE, "max_tokens": facts.answer_tokens, **kind}]


def _holds(replies: Sequence[Reply], facts: Facts) -> bool:
    value = _json(replies[0].content)
    return isinstance(value, dict) and set(value) == {"ok"} and isinstance(value["ok"], bool)


def _is_object(replies: Sequence[Reply], facts: Facts) -> bool:
    return isinstance(_json(replies[0].content), dict)


def _scored(facts: Facts) -> Sequence[Mapping[str, Any]]:
    return [{"logprobs": True, "top_logprobs": 1} if facts.is_chat else {"logprobs": 1}]


def _are_numbers(replies: Sequence[Reply], facts: Facts) -> bool:
    choice = replies[0].choice
    logprobs = choice.get("logprobs")
    if not isinstance(logprobs, dict):
        return False
    if facts.is_chat:
        values = [one.get("logprob") if isinstance(one, dict) else None for one in _list(logprobs.get("content"))]
    else:
        values = _list(logprobs.get("token_logprobs"))
    return bool(values) and all(map(_is_number, values))


def _calls(facts: Facts) -> Sequence[Mapping[str, Any]]:
    choice = {"type": "function", "function": {"name": "note"}}
    return [{"prompt": "Say hello.", "tools": [_TOOL], "tool_choice": choice, "max_tokens": facts.answer_tokens}]


def _has_called(replies: Sequence[Reply], facts: Facts) -> bool:
    choice = replies[0].choice
    message = choice.get("message")
    calls = _list(message.get("tool_calls")) if isinstance(message, dict) else []
    called = [call.get("function") for call in calls if isinstance(call, dict)]
    return bool(called) and all(
        isinstance(one, dict) and one.get("name") == "note" and isinstance(_json(one.get("arguments")), dict)
        for one in called
    )


def _like_greedy(**fields: Any) -> Callable[[Facts], Sequence[Mapping[str, Any]]]:
    """Sample, but from one token: the answer is the greedy one."""
    return lambda facts: [{"prompt": LETTERS, "temperature": 1.0, **fields}]


def _equals_greedy(replies: Sequence[Reply], facts: Facts) -> bool:
    return facts.greedy is not None and bool(facts.greedy.text) and replies[0].text == facts.greedy.text


def _has_echo(replies: Sequence[Reply], facts: Facts) -> bool:
    return replies[0].text.lstrip().startswith("One two three")


def _has_tokens(replies: Sequence[Reply], facts: Facts) -> bool:
    """Three tokens, perhaps one at the beginning: the text of that list would have more."""
    return replies[0].count("prompt_tokens") in (3, 4)


def _is_chosen(replies: Sequence[Reply], facts: Facts) -> bool:
    return replies[0].content.strip() in ("kiwi", "plum")


def _has_digits(replies: Sequence[Reply], facts: Facts) -> bool:
    content = replies[0].content.strip()
    return len(content) == 3 and content.isdecimal()


def _has_usage(replies: Sequence[Reply], facts: Facts) -> bool:
    return bool(facts.plain.count("prompt_tokens")) and bool(facts.plain.count("completion_tokens"))


def _is_limited(replies: Sequence[Reply], facts: Facts) -> bool:
    count = facts.plain.count("completion_tokens")
    return facts.plain.end == "length" and (count is None or count <= _ANSWER_TOKENS)


_COMPLETIONS = {"path": "completions", "max_tokens": 1}
_FORMAT = {"type": "json_schema", "json_schema": {"name": "answer", "schema": _SCHEMA, "strict": True}}


def probes_of(dialect: Dialect, kind: LineKind = LineKind.GENERATE) -> list[Probe]:
    """Return the probes of a server, those that most lines need first; none of one that gives vectors or scores."""
    if kind is not LineKind.GENERATE:
        return []
    schema = {"type": "json_object", "schema": _SCHEMA} if dialect.puts_schema_into_json_object else _FORMAT
    json_object = {"response_format": {"type": "json_object"}}
    return [
        Probe(
            name="usage",
            effect="an answer has positive counts of its prompt and its tokens",
            need=NOTHING,
            requests=lambda facts: [],
            has_effect=_has_usage,
        ),
        Probe(
            name="max_tokens",
            effect="a long answer ends at the limit, with `length`",
            need=NOTHING,
            requests=lambda facts: [],
            has_effect=_is_limited,
        ),
        Probe(
            name="seed",
            effect="the same seed twice gives one answer at temperature 1",
            need=Need.SEED,
            requests=_twice,
            has_effect=_is_repeated,
        ),
        Probe(
            name="stop",
            effect="an answer is cut before a string that it had without `stop`",
            need=Need.STOP,
            requests=_stopped,
            has_effect=_is_cut,
        ),
        Probe(
            name="json",
            effect="a schema holds, though the prompt asks for a word instead",
            need=Need.JSON,
            requests=_adverse({"response_format": schema}),
            has_effect=_holds,
        ),
        Probe(
            name="json_object",
            effect="an object comes, though the prompt asks for a word instead",
            need=Need.JSON_OBJECT,
            requests=_adverse(json_object),
            has_effect=_is_object,
        ),
        Probe(
            name="n",
            effect="`n` 2 gives two choices",
            need=Need.N,
            requests=_greedy(n=2, temperature=1.0, max_tokens=4),
            has_effect=_has_two,
        ),
        Probe(
            name="logprobs",
            effect="each token has a finite number",
            need=Need.LOGPROBS,
            requests=_scored,
            has_effect=_are_numbers,
        ),
        Probe(
            name="tools",
            effect="a call that is forced comes, with JSON as its arguments",
            need=Need.TOOLS,
            requests=_calls,
            has_effect=_has_called,
        ),
        *_of_own_names(dialect),
        Probe(
            name="many_prompts",
            effect="two prompts give two choices",
            need=Need.MANY_PROMPTS,
            requests=_greedy(prompt=["One", "Two"], **_COMPLETIONS),
            has_effect=_has_two,
        ),
        Probe(
            name="token_prompts",
            effect="three token ids are counted as three tokens, or four with one at the beginning",
            need=Need.TOKEN_PROMPTS,
            requests=_greedy(prompt=[11, 12, 13], **_COMPLETIONS),
            has_effect=_has_tokens,
        ),
        Probe(
            name="echo",
            effect="the text begins with the prompt",
            need=Need.ECHO,
            requests=_greedy(prompt="One two three", echo=True, **_COMPLETIONS),
            has_effect=_has_echo,
        ),
    ]


def _of_own_names(dialect: Dialect) -> list[Probe]:
    """Return the probes of parameters that OpenAI's API lacks, of a server that has names for them."""
    sampled = [
        Probe(
            name=name,
            effect=f"temperature 1 with `{name}` {value:g} gives the greedy answer",
            need=need,
            requests=_like_greedy(**{dialect.names[name]: value}),
            has_effect=_equals_greedy,
        )
        for name, need, value in (("top_k", Need.TOP_K, 1), ("min_p", Need.MIN_P, 1.0))
        if name in dialect.names
    ]
    if not dialect.has_structured_outputs:
        return sampled
    choice, digits = ({"structured_outputs": one} for one in ({"choice": ["kiwi", "plum"]}, {"regex": "[0-9]{3}"}))
    return [
        *sampled,
        Probe(
            name="choice",
            effect="one of two words comes, though the prompt asks for a third",
            need=Need.CHOICE,
            requests=_adverse(choice),
            has_effect=_is_chosen,
        ),
        Probe(
            name="regex",
            effect="three digits come, though the prompt asks for a word",
            need=Need.REGEX,
            requests=_adverse(digits),
            has_effect=_has_digits,
        ),
    ]


def probed_needs(dialect: Dialect, kind: LineKind = LineKind.GENERATE) -> Need:
    """Return the needs that a server's probes show; the others are met as its dialect claims."""
    needs = NOTHING
    for probe in probes_of(dialect, kind):
        needs |= probe.need
    return needs


def abilities(dialect: Dialect, findings: Mapping[str, str], kind: LineKind = LineKind.GENERATE) -> tuple[Need, Need]:
    """Return what a server meets by its findings, and the same with what has not been seen either way."""
    meets = dialect.meets & ~probed_needs(dialect, kind)
    may_meet = meets
    for probe in probes_of(dialect, kind):
        found = findings.get(probe.name)
        if found == Seen.YES:
            meets |= probe.need
        if found not in (Seen.NO, Seen.ABSENT):
            may_meet |= probe.need
    return meets, may_meet


def _text(choice: Mapping[str, Any]) -> str:
    message = choice.get("message")
    holder = message if isinstance(message, dict) else choice
    parts = (holder.get(name) for name in ("content", "reasoning_content", "reasoning", "text"))
    return next((part for part in parts if isinstance(part, str) and part), "")


def _json(text: Any) -> Any:
    try:
        return orjson.loads(text) if isinstance(text, str) else None
    except orjson.JSONDecodeError:
        return None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
