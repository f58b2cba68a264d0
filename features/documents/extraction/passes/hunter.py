"""The first reading: one slot per leaf, filled with a value and its quote, or null."""

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

    For a repeated question `doubts` name the doubtful leaves and the reasons; reasons, or all leaves, may be left out.
    `max_characters` limits texts and quotes.
    """
    task = _QUOTED if quotes else _PLAIN
    if doubts is not None:
        doubts_in_words = "; ".join(_doubt(paths, reason) for reason, paths in _by_reason(doubts).items())
        task = f"A first answer was doubtful{f' ({doubts_in_words})' if doubts_in_words else ''}. Look again. {task}"
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
    """Return the leaves by reason, so that a shared reason is stated once: after a cut many share one."""
    paths_by_reason: dict[str | None, list[Path]] = {}
    for path, reason in doubts.items():
        paths_by_reason.setdefault(reason, []).append(path)
    return paths_by_reason


def shared_part(group: Group, examples: Sequence[Example], *, quotes: bool) -> str:
    """Return the text that all requests for a group share."""
    examples_text = examples_in_words(examples, group, quotes=quotes)
    return "\n\n".join(part for part in (fields_in_words(group), examples_text) if part)
