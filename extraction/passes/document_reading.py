"""One document's answers, put together: what was found, what is asked again, and what counts in the end.

Knows no line and no result of a batch: texts of answers in, findings out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from extraction.documents.layout import LayoutText
from extraction.fields.groups import Group
from extraction.fields.paths import Path
from extraction.fields.schema import FieldSchema
from extraction.passes.answers import read_answer
from extraction.passes.asking_again import doubts, settle
from extraction.passes.findings import Answer, Finding, ground_readings, relocate
from extraction.passes.logprobs import with_logprobs
from extraction.passes.merging import Merged, merge, record
from extraction.passes.validators import violations


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupReading:
    """What was answered about one group of a document; spans of `findings` are of the text that the prompt showed."""

    group: Group
    shown: LayoutText
    answer: Answer
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentReading:
    """What was answered about a document the first time, and of doubtful leaves the second."""

    schema: FieldSchema
    first: tuple[GroupReading, ...]
    again: Mapping[int, GroupReading] = field(default_factory=dict)
    """By the number of the group."""

    def doubts(self) -> dict[int, dict[Path, str]]:
        """Return for each group with doubtful leaves why each of them is asked again."""
        against = violations(
            self.schema, record(self.schema, self._merged([(one.findings, one.shown) for one in self.first]))
        )
        found = {
            number: doubts(one.group, one.answer, one.findings, violations=against)
            for number, one in enumerate(self.first)
        }
        return {number: reasons for number, reasons in found.items() if reasons}

    def merged(self) -> list[Merged]:
        """Return each value of the record with its candidates; spans are of the document's text."""
        passages: list[tuple[Sequence[Finding], LayoutText]] = []
        doubts = self.doubts() if self.again else {}
        for number, one in enumerate(self.first):
            second = self.again.get(number)
            if second is None:
                passages.append((one.findings, one.shown))
            else:
                asked = doubts[number].keys()  # not the keys of items, which came with them
                kept, again = settle(one.group, one.findings, second.findings, asked)
                passages += [(kept, one.shown), (again, second.shown)]
        return self._merged(passages)

    def _merged(self, passages: Sequence[tuple[Sequence[Finding], LayoutText]]) -> list[Merged]:
        return merge(self.schema, [relocate(findings, shown.to_document) for findings, shown in passages])


def read_group(
    text: str, group: Group, shown: LayoutText, *, quotes: bool, content: Sequence[Mapping[str, Any]] = ()
) -> GroupReading:
    """Read one answer, and look for what it says in the text that its prompt showed.

    `content` is `logprobs.content` of the chat completion, where those were asked for.
    """
    answer = read_answer(text, group, quotes=quotes)
    findings = ground_readings(answer.readings, group, shown.text if shown.own_text is None else shown.own_text)
    if content:
        findings = with_logprobs(findings, group, text, content)
    return GroupReading(group=group, shown=shown, answer=answer, findings=tuple(findings))
