"""The log-probabilities of a value's own tokens, out of those of a whole answer.

Tokens that a grammar or the rest of a choice forced are left out: they say nothing. Log-probabilities are those from
before the mask, so how sure a model was is seen, not how sure it had to be. Knows no score.
"""

from __future__ import annotations

import os.path
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from features.documents.extraction.fields.groups import Group
from features.documents.extraction.fields.leaf import Leaf
from features.documents.extraction.passes.findings import Finding, Reading, ValueLogprobs


def with_logprobs(
    findings: Sequence[Finding], group: Group, answer: str, content: Sequence[Mapping[str, Any]]
) -> list[Finding]:
    """Return the findings of one answer with their log-probabilities; for `content` see `value_logprobs`."""
    leaves = {leaf.path: leaf for leaf in group.leaves}
    return [
        replace(each, logprobs=value_logprobs(each.reading, leaves[each.path], answer, content)) for each in findings
    ]


def value_logprobs(
    reading: Reading, leaf: Leaf, answer: str, content: Sequence[Mapping[str, Any]]
) -> ValueLogprobs | None:
    """Return those of a reading; `content` is `logprobs.content` of the chat completion that answered `answer`.

    None where no token of the value is in it.
    """
    start, end = reading.answer_start, _decided_end(reading, leaf)
    first, last = len(answer[:start].encode()), len(answer[:end].encode())
    inside = [token for token, begin, close in _placed(content) if begin < last and close > first]
    if not inside:
        return None
    own = [float(token["logprob"]) for token in inside]
    leads = [lead for token in inside if (lead := _lead(token)) is not None]
    return ValueLogprobs(
        mean=sum(own) / len(own),
        minimum=min(own),
        margin=min(leads) if leads else None,
        stated=_stated(reading, answer, content),
    )


def _stated(reading: Reading, answer: str, content: Sequence[Mapping[str, Any]]) -> float | None:
    if reading.said_at is None:
        return None
    place = len(answer[: reading.said_at].encode())
    return next((float(token["logprob"]) for token, begin, close in _placed(content) if begin <= place < close), None)


def _decided_end(reading: Reading, leaf: Leaf) -> int:
    """Return where in the answer a value is decided: of a choice, behind the first sign that no other has, too."""
    if leaf.enum is None or not isinstance(reading.value, str):
        return reading.answer_end
    others = [str(value) for value in leaf.enum if value != reading.value]
    shared = max((len(os.path.commonprefix([reading.value, other])) for other in others), default=0)  # noqa: RUF071
    return min(reading.answer_end, reading.answer_start + shared + 1)


def _placed(content: Sequence[Mapping[str, Any]]) -> list[tuple[Mapping[str, Any], int, int]]:
    """Return each token with its place in the answer's bytes: a token may end amid a character."""
    placed, begin = [], 0
    for token in content:
        raw = token.get("bytes")
        size = len(token["token"].encode()) if raw is None else len(raw)
        placed.append((token, begin, begin + size))
        begin += size
    return placed


def _lead(token: Mapping[str, Any]) -> float | None:
    others = [float(other["logprob"]) for other in token.get("top_logprobs") or [] if other["token"] != token["token"]]
    return float(token["logprob"]) - max(others) if others else None
