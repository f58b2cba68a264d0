"""Which leaves are asked a second time, why, and what counts when both answers are there.

Once, all doubtful leaves of a document together; a third time nothing is asked. Knows no batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from extraction.fields.groups import Group
from extraction.fields.paths import ITEM, Path
from extraction.passes.findings import Agreement, Answer, Finding
from extraction.passes.validators import Violation

MISSING = "the answer ended before it"
CUT = "the answer ran on in it until it was cut"
UNREADABLE = "it could not be read as a value of its kind, or is too long a number"
UNGROUNDED = "the value was not found in the document"
CONTRADICTED = "a second reading found another value there"


def doubts(
    group: Group,
    answer: Answer,
    findings: Sequence[Finding],
    violations: Iterable[Violation] = (),
) -> dict[Path, str]:
    """Return the leaves of a group to be asked again, each with the first reason: what `hunter_request` tells."""
    leaves = {leaf.path: leaf for leaf in group.leaves}
    found = dict.fromkeys(answer.missing, MISSING) | dict.fromkeys(answer.unreadable, UNREADABLE)
    if answer.cut_at is not None:
        found[answer.cut_at] = CUT
    for finding in findings:
        if finding.value is not None and leaves[finding.path].ground and not finding.spans:
            found.setdefault(finding.path, UNGROUNDED)
    for finding in findings:
        if finding.agreement is Agreement.DIFFERS:
            found.setdefault(finding.path, CONTRADICTED)
    for violation in violations:
        for path in violation.paths:
            if path in leaves:
                found.setdefault(path, violation.reason)
    for path in list(found):
        for other in _whole_array(group, path):
            found.setdefault(other, found[path])
    return {leaf.path: found[leaf.path] for leaf in group.leaves if leaf.path in found}


def fewer_reasons(doubts: Mapping[Path, str]) -> Iterator[dict[Path, str | None]]:
    """Yield doubts with fewer and fewer told: None for the longest reasons first, at last not even the leaves."""
    told: dict[Path, str | None] = dict(doubts)
    for reason in sorted(set(doubts.values()), key=lambda reason: (-len(reason), reason)):
        told = {path: None if each == reason else each for path, each in told.items()}
        yield told
    yield {}


def settle(
    group: Group, first: Sequence[Finding], again: Sequence[Finding], asked: Iterable[Path]
) -> list[list[Finding]]:
    """Return what to `merge` of a first answer and of the one to the doubtful leaves.

    An array that was asked as a whole counts as it was said the second time. Elsewhere a value that was found
    nowhere gives way to whatever was said the second time, null too.
    """
    asked_again = set(asked)
    answered = {finding.path for finding in again}
    replaced = {other for path in asked_again & answered for other in _whole_array(group, path)}
    grounds = {leaf.path: leaf.ground for leaf in group.leaves}

    def is_kept(finding: Finding) -> bool:
        is_found = finding.value is None or bool(finding.spans) or not grounds[finding.path]
        is_answered = finding.path in asked_again and finding.path in answered
        return finding.path not in replaced and (is_found or not is_answered)

    return [[finding for finding in first if is_kept(finding)], list(again)]


def _whole_array(group: Group, path: Path) -> list[Path]:
    """Return all leaves of a leaf's array, where new values could not be joined with old ones by keys; else none."""
    items = [path[:end] for end, part in enumerate(path, 1) if part == ITEM]
    keys = {leaf.path[:-1] for leaf in group.leaves if leaf.key}
    is_key = any(leaf.key and leaf.path == path for leaf in group.leaves)
    if not items or (not is_key and keys.issuperset(items)):
        return []
    return [leaf.path for leaf in group.leaves if leaf.path[: len(items[0])] == items[0]]
