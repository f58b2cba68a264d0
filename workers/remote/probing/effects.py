"""Judges whether the answers to a probe show its effect: yes, no, or None where they could be either. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pydantic_core import from_json

from workers.remote.logprobs import is_number
from workers.remote.probing.replies import Reply, json_of, list_of

PLAIN_TOKENS = 12
"""Most tokens of the answer to the plain request."""
CALLED = "note"
"""The name of the tool that is to be called."""
WORDS = ("kiwi", "plum")
"""Of which one is to be answered."""
ECHOED = "One two three"
FAVOURED_TOKENS = 4
"""Tokens of the answer in which one token is favoured."""
_WHOLE = ('{"ok":true}', '{"ok":false}')


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What earlier answers showed."""

    is_chat: bool
    plain: Reply
    """The greedy answer to a plain request, of at most PLAIN_TOKENS."""
    baseline: Reply | None = None
    """The answer to the probe's baseline, if it has one."""

    @property
    def stop(self) -> str:
        """Return a string of the middle of the plain answer, at which the same answer is to be cut."""
        text = self.plain.text.strip()
        return text[len(text) // 2 :][:2].strip()


Effect = Callable[[Sequence[Reply], Facts], bool | None]


def has_usage(replies: Sequence[Reply], facts: Facts) -> bool:
    return bool(facts.plain.count("prompt_tokens")) and bool(facts.plain.count("completion_tokens"))


def is_limited(replies: Sequence[Reply], facts: Facts) -> bool | None:
    if not facts.plain.text:
        return None  # nothing was to be cut
    count = facts.plain.count("completion_tokens")
    return facts.plain.is_cut and (count is None or count <= PLAIN_TOKENS)


def is_repeated(replies: Sequence[Reply], facts: Facts) -> bool:
    return bool(replies[0].text) and replies[0].texts == replies[1].texts


def is_stopped(replies: Sequence[Reply], facts: Facts) -> bool | None:
    if not facts.stop:
        return None
    return bool(replies) and facts.stop not in replies[0].text and replies[0].end == "stop"


def has_two(num_tokens: int) -> Effect:
    """Two choices of this many tokens, which are all counted: llama-server counts those of the first choice alone."""

    def judge(replies: Sequence[Reply], facts: Facts) -> bool | None:
        choices, counted = replies[0].choices, replies[0].count("completion_tokens")
        if len(choices) != 2 or counted is None:
            return len(choices) == 2
        are_cut = all(choice.get("finish_reason") == "length" for choice in choices)
        return counted == 2 * num_tokens if are_cut else None

    return judge


def holds_schema(replies: Sequence[Reply], facts: Facts) -> bool:
    """The object of the schema, or its beginning: white space may fill an answer up to its limit."""
    content = "".join(replies[0].content.split())
    return content in _WHOLE or (bool(content) and replies[0].is_cut and any(one.startswith(content) for one in _WHOLE))


def is_object(replies: Sequence[Reply], facts: Facts) -> bool:
    """An object, or the beginning of one that the limit cut."""
    content = replies[0].content
    if not replies[0].is_cut:
        return isinstance(json_of(content), dict)
    try:
        return isinstance(from_json(content, allow_partial="trailing-strings"), dict)
    except ValueError:
        return False


def has_scores(replies: Sequence[Reply], facts: Facts) -> bool:
    logprobs = replies[0].choice.get("logprobs")
    if not isinstance(logprobs, dict):
        return False
    content = list_of(logprobs.get("content"))
    values = [one.get("logprob") if isinstance(one, dict) else None for one in content]
    values = values or list_of(logprobs.get("token_logprobs"))
    return bool(values) and all(map(is_number, values))


def has_called(replies: Sequence[Reply], facts: Facts) -> bool:
    called = replies[0].called
    return bool(called) and all(
        isinstance(one, dict) and one.get("name") == CALLED and isinstance(json_of(one.get("arguments")), dict)
        for one in called
    )


def equals_baseline(replies: Sequence[Reply], facts: Facts) -> bool | None:
    expected = _baseline(facts)
    return replies[0].text == expected if expected else None


def is_favoured(replies: Sequence[Reply], facts: Facts) -> bool | None:
    """One token only, again and again; None where that token has no text."""
    text = "".join(replies[0].text.split())
    if not text:
        return None
    once = text[: len(text) // FAVOURED_TOKENS]
    return text == once * FAVOURED_TOKENS and not _is_plain(replies[0], facts)


def differs_from_baseline(replies: Sequence[Reply], facts: Facts) -> bool | None:
    """Another answer than without the penalty; None where the tokens to choose from were not favoured."""
    expected = _baseline(facts)
    if not expected or facts.baseline is None or _is_plain(facts.baseline, facts):
        return None
    return replies[0].text != expected


def _baseline(facts: Facts) -> str:
    return "" if facts.baseline is None else facts.baseline.text


def _is_plain(reply: Reply, facts: Facts) -> bool:
    """Return whether an answer begins as the plain one."""
    return facts.plain.text.startswith(reply.text.rstrip("\ufffd"))


def is_chosen(replies: Sequence[Reply], facts: Facts) -> bool:
    return replies[0].content.strip() in WORDS


def has_digits(replies: Sequence[Reply], facts: Facts) -> bool:
    content = replies[0].content.strip()
    return len(content) == 3 and content.isdecimal()


def has_echo(replies: Sequence[Reply], facts: Facts) -> bool:
    return replies[0].text.lstrip().startswith(ECHOED)


def has_tokens(replies: Sequence[Reply], facts: Facts) -> bool:
    """Three tokens, perhaps one at the beginning: the text of that list would have more."""
    return replies[0].count("prompt_tokens") in (3, 4)
