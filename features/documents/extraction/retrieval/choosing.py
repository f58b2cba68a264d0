"""Chooses the ranked passages that a prompt has room for, with reasons for those left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from features.documents.extraction.retrieval.ranking import Hit
from features.documents.extraction.retrieval.segment import Place


class LeftOut(StrEnum):
    """Why a passage is not in a prompt."""

    TOKENS = "tokens"  # there was no room for it
    RANK = "rank"  # the maximum number of better passages is chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """A passage at its rank, from 0."""

    rank: int
    hit: Hit
    place: Place
    left_out: LeftOut | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The passages chosen for a prompt, and the others."""

    chosen: tuple[Ranked, ...]
    """Documents by their best passage, the passages of each in text order."""
    dropped: tuple[Ranked, ...]
    """In the order of ranks."""
    num_tokens: int


def choose(ranked: Sequence[tuple[Hit, Place]], *, max_tokens: int, top_k: int) -> Choice:
    """Take the best passages that fit, at most `top_k`; a smaller one may replace a better one that does not fit."""
    chosen: list[Ranked] = []
    dropped: list[Ranked] = []
    used = 0
    for rank, (hit, place) in enumerate(ranked):
        reason = _reason(used + place.num_tokens, len(chosen), max_tokens=max_tokens, top_k=top_k)
        one = Ranked(rank=rank, hit=hit, place=place, left_out=reason)
        if reason is None:
            chosen.append(one)
            used += place.num_tokens
        else:
            dropped.append(one)
    documents = {name: number for number, name in enumerate(dict.fromkeys(one.place.document for one in chosen))}
    chosen.sort(key=lambda one: (documents[one.place.document], one.place.start))
    return Choice(chosen=tuple(chosen), dropped=tuple(dropped), num_tokens=used)


def _reason(num_tokens: int, num_chosen: int, *, max_tokens: int, top_k: int) -> LeftOut | None:
    if num_chosen >= top_k:
        return LeftOut.RANK
    return LeftOut.TOKENS if num_tokens > max_tokens else None
