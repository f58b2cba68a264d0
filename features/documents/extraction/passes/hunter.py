"""The first reading: one slot for each leaf, filled with a value and the words that hold it, or with null.

Knows no answer; that is read by `answers.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from features.documents.extraction.fields.groups import Group
from features.documents.extraction.fields.paths import Path, spell
from features.documents.extraction.passes.examples import Example, examples_in_words
from features.documents.extraction.passes.prompts import Request, Shape, fields_in_words, request

_QUOTED = (
    "Answer with JSON. For each field give its value and a quote: the words of the document that hold the value,"
    " letter by letter. Give null for a field that the document does not state."
)
_PLAIN = "Answer with JSON: the value of each field. Give null for a field that the document does not state."


def hunter_request(
    document_text: str,
    group: Group,
    *,
    quotes: bool = True,
    examples: Sequence[Example] = (),
    shape: Shape = Shape.FIELDS_FIRST,
    doubts: Mapping[Path, str | None] | None = None,
    max_characters: int | None = None,
) -> Request:
    """Return the request for one group of one document.

    Where it is asked again `doubts` say which leaves are the reason, and why; of some, or of all, it may not be told.
    `max_characters` bounds texts and quotes.
    """
    task = _QUOTED if quotes else _PLAIN
    if doubts is not None:
        told = "; ".join(_doubt(paths, reason) for reason, paths in _by_reason(doubts).items())
        task = f"A first answer was doubtful{f' ({told})' if told else ''}. Look again. {task}"
    return request(
        document_text,
        shared=shared_part(group, examples, quotes=quotes),
        task=task,
        shape=shape,
        name="fields",
        schema=(group.quoted_schema if quotes else group.plain_schema)(max_characters=max_characters),
    )


def _doubt(paths: Sequence[Path], reason: str | None) -> str:
    names = ", ".join(map(spell, paths))
    return names if reason is None else f"{names}: {reason}"


def _by_reason(doubts: Mapping[Path, str | None]) -> dict[str | None, list[Path]]:
    """Return the leaves of each reason, which is told once: after a cut many share one."""
    found: dict[str | None, list[Path]] = {}
    for path, reason in doubts.items():
        found.setdefault(reason, []).append(path)
    return found


def shared_part(group: Group, examples: Sequence[Example], *, quotes: bool) -> str:
    """Return what all requests for a group say of it."""
    told = examples_in_words(examples, group, quotes=quotes)
    return "\n\n".join(part for part in (fields_in_words(group), told) if part)
