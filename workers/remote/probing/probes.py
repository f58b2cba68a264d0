"""The probes of a server: tiny requests, each with an effect that can be seen in the answer.

A server that ignores a parameter in silence is told apart from one that knows it. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jobs.lines.endpoints import LineKind
from jobs.lines.needs import NOTHING, Need
from workers.remote.dialects import Dialect
from workers.remote.probing import effects
from workers.remote.probing.effects import CALLED, ECHOED, FAVOURED_TOKENS, PLAIN_TOKENS, WORDS, Effect, Facts
from workers.remote.probing.replies import CONCLUSIVE, Seen
from workers.remote.requests import forced_call, schema_format

MAX_TOKENS = 2000
"""Tokens of prompts and answers that all probes of an engine may use."""
COUNTING = "Count from 1 to 40, separated by commas."
LETTERS = "Write twenty random letters."
_ADVERSE = "Reply with the single word banana. Do not write JSON."
_SHAPED_TOKENS = 2 * PLAIN_TOKENS
_CALL_TOKENS = 64
"""The tags and the name of a call come before its arguments."""
_THINKING_TOKENS = 256
"""For the answer of a model that thinks first."""
_FAVOURED = range(700, 1000, 10)
"""Token ids that are words or parts of words in most vocabularies, and in the smallest ones, too."""
_MOST_BIAS = 100
_SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}
_TOOL = {
    "type": "function",
    "function": {
        "name": CALLED,
        "description": "Keep a note.",
        "parameters": {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]},
    },
}

Fields = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One capability."""

    name: str
    need: Need = NOTHING
    """What it stands for; nothing: it is only recorded."""
    effect: str
    """What is to be seen, for the documentation."""
    requests: Callable[[Facts], Sequence[Fields]] = lambda facts: ()
    """Fields of each request beside the common ones; `prompt` is the text of its prompt, `path` if not the usual."""
    has_effect: Effect
    baseline: Fields | None = None
    """A request without the parameter, asked once for all probes that compare with it."""
    is_believed: bool = False
    """Whether the dialect's claim holds until the probe is answered."""


def _once(**fields: Any) -> Callable[[Facts], Sequence[Fields]]:
    return lambda facts: [fields]


def _shaped(tokens: int = _SHAPED_TOKENS, **fields: Any) -> Callable[[Facts], Sequence[Fields]]:
    """Ask for an answer of a form, with room for thoughts before it."""
    return lambda facts: [{"max_tokens": _THINKING_TOKENS if facts.plain.thinks else tokens, **fields}]


def _stopped(facts: Facts) -> Sequence[Fields]:
    return [{"stop": [facts.stop]}] if facts.stop else []


def _scored(facts: Facts) -> Sequence[Fields]:
    return [{"logprobs": True, "top_logprobs": 1} if facts.is_chat else {"logprobs": 1}]


def probes_of(dialect: Dialect, kind: LineKind = LineKind.GENERATE) -> list[Probe]:
    """Return the probes of a server, those that most lines need first; none of one that gives vectors or scores."""
    if kind is not LineKind.GENERATE:
        return []
    biases = _of_biases(dialect) if Need.LOGIT_BIAS in dialect.meets else []
    return [*_of_answers(), *_of_forms(dialect), *_of_sampling(dialect), *_of_completions(), *biases]


def _of_answers() -> list[Probe]:
    sampled = {"prompt": LETTERS, "temperature": 1.0, "seed": 71}
    return [
        Probe(
            name="usage",
            effect="an answer has positive counts of its prompt and its tokens",
            has_effect=effects.has_usage,
        ),
        Probe(
            name="max_tokens",
            effect="a long answer ends at the limit, with `length`",
            has_effect=effects.is_limited,
        ),
        Probe(
            name="seed",
            effect="the same seed twice gives one answer at temperature 1",
            need=Need.SEED,
            requests=lambda facts: [sampled, sampled],
            has_effect=effects.is_repeated,
        ),
        Probe(
            name="stop",
            effect="an answer is cut before a string that it had without `stop`",
            need=Need.STOP,
            requests=_stopped,
            has_effect=effects.is_stopped,
        ),
    ]


def _of_forms(dialect: Dialect) -> list[Probe]:
    forms = [
        Probe(
            name="json",
            effect="a schema holds, though the prompt asks for a word instead",
            need=Need.JSON,
            requests=_shaped(prompt=_ADVERSE, response_format=schema_format(_SCHEMA, dialect)),
            has_effect=effects.holds_schema,
        ),
        Probe(
            name="json_object",
            effect="an object comes, though the prompt asks for a word instead",
            need=Need.JSON_OBJECT,
            requests=_shaped(prompt=_ADVERSE, response_format={"type": "json_object"}),
            has_effect=effects.is_object,
        ),
        Probe(
            name="n",
            effect="`n` 2 gives two choices, and the tokens of both are counted",
            need=Need.N,
            requests=_once(n=2, temperature=1.0, max_tokens=4),
            has_effect=effects.has_two(4),
        ),
        Probe(
            name="logprobs",
            effect="each token has a finite number",
            need=Need.LOGPROBS,
            requests=_scored,
            has_effect=effects.has_scores,
        ),
        Probe(
            name="tools",
            effect="a call that is forced comes, with JSON as its arguments",
            need=Need.TOOLS,
            requests=_shaped(_CALL_TOKENS, prompt="Say hello.", **{"tools": [_TOOL], **forced_call(_TOOL, dialect)}),
            has_effect=effects.has_called,
        ),
    ]
    return forms if not dialect.has_structured_outputs else [*forms, *_of_structures()]


def _of_structures() -> list[Probe]:
    return [
        Probe(
            name="choice",
            effect="one of two words comes, though the prompt asks for a third",
            need=Need.CHOICE,
            requests=_shaped(prompt=_ADVERSE, structured_outputs={"choice": list(WORDS)}),
            has_effect=effects.is_chosen,
        ),
        Probe(
            name="regex",
            effect="three digits come, though the prompt asks for a word",
            need=Need.REGEX,
            requests=_shaped(prompt=_ADVERSE, structured_outputs={"regex": "[0-9]{3}"}),
            has_effect=effects.has_digits,
        ),
    ]


def _of_sampling(dialect: Dialect) -> list[Probe]:
    """Return the probes of parameters that OpenAI's API lacks, of a server that has names for them."""
    return [
        Probe(
            name=name,
            effect=f"temperature 1 with `{name}` {value:g} gives the greedy answer",
            need=need,
            requests=_once(prompt=LETTERS, temperature=1.0, **{dialect.names[name]: value}),
            has_effect=effects.equals_baseline,
            baseline={"prompt": LETTERS},
        )
        for name, need, value in (("top_k", Need.TOP_K, 1), ("min_p", Need.MIN_P, 1.0))
        if name in dialect.names
    ]


def _of_biases(dialect: Dialect) -> list[Probe]:
    """Return the probes that need a bias; penalties choose between tokens that are favoured alike."""
    favoured = {"logit_bias": {str(number): _MOST_BIAS for number in _FAVOURED}, "max_tokens": 2 * FAVOURED_TOKENS}
    own_name = dialect.names.get("repetition_penalty")
    penalties = {"presence_penalty": "presence_penalty", "frequency_penalty": "frequency_penalty"}
    penalties |= {} if own_name is None else {"repetition_penalty": own_name}
    return [
        Probe(
            name="logit_bias",
            effect=f"a token with the bias {_MOST_BIAS} comes again and again",
            need=Need.LOGIT_BIAS,
            requests=_once(logit_bias={str(_FAVOURED[-1]): _MOST_BIAS}, max_tokens=FAVOURED_TOKENS),
            has_effect=effects.is_favoured,
            is_believed=True,
        ),
        *(
            Probe(
                name=name,
                effect=f"`{name}` 2 changes the answer of {len(_FAVOURED)} tokens with the bias {_MOST_BIAS}",
                need=Need[name.upper()],
                requests=_once(**favoured, **{sent_as: 2.0}),
                has_effect=effects.differs_from_baseline,
                baseline=favoured,
                is_believed=True,
            )
            for name, sent_as in penalties.items()
        ),
    ]


def _of_completions() -> list[Probe]:
    one_token = {"path": "completions", "max_tokens": 1}
    return [
        Probe(
            name="many_prompts",
            effect="two prompts give two choices, and the tokens of both are counted",
            need=Need.MANY_PROMPTS,
            requests=_once(prompt=["One", "Two"], **one_token),
            has_effect=effects.has_two(1),
        ),
        Probe(
            name="token_prompts",
            effect="three token ids are counted as three tokens, or four with one at the beginning",
            need=Need.TOKEN_PROMPTS,
            requests=_once(prompt=[11, 12, 13], **one_token),
            has_effect=effects.has_tokens,
        ),
        Probe(
            name="echo",
            effect="the text begins with the prompt",
            need=Need.ECHO,
            requests=_once(prompt=ECHOED, echo=True, **one_token),
            has_effect=effects.has_echo,
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
        is_open = found == Seen.UNCLEAR or (probe.is_believed and found not in CONCLUSIVE)
        is_claimed = is_open and probe.need in dialect.meets
        if found == Seen.YES or is_claimed:
            meets |= probe.need
        if found not in CONCLUSIVE or found == Seen.YES or is_claimed:
            may_meet |= probe.need
    return meets, may_meet
