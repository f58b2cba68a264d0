"""The log-probabilities of a value's tokens, taken from those of the whole answer.

Tokens forced by the grammar or by earlier tokens of a choice are left out: they carry no information.
Log-probabilities are those before the mask, so they show how sure the model was.
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
    """Return the log-probabilities of a reading; `content` is `logprobs.content` of the chat completion `answer`.

    Returns None if it has no token of the value.
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
    """Return where in the answer a value is decided: for a choice, after the first distinguishing character."""
    if leaf.enum is None or not isinstance(reading.value, str):
        return reading.answer_end
    others = [str(value) for value in leaf.enum if value != reading.value]
    shared = max((len(os.path.commonprefix([reading.value, other])) for other in others), default=0)  # noqa: RUF071
    return min(reading.answer_end, reading.answer_start + shared + 1)


def _placed(content: Sequence[Mapping[str, Any]]) -> list[tuple[Mapping[str, Any], int, int]]:
    """Return each token with its range in the answer's bytes: a token may end inside a character."""
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
