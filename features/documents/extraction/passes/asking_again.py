"""Which leaves are asked again, why, in which questions, and what counts when both answers are there.

Doubtful leaves are asked once more, those that an answer left out in halves: see `DocumentReading`. Knows no batch.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

from features.documents.extraction.fields.groups import Group
from features.documents.extraction.fields.paths import ITEM, Path, Place, path_of
from features.documents.extraction.fields.values import normal_forms
from features.documents.extraction.passes.findings import Agreement, Answer, Finding
from features.documents.extraction.passes.validators import Violation

MISSING = "the answer ended before it"
CUT = "the answer ran on in it until it was cut"
UNREADABLE = "it could not be read as a value of its kind, or is too long a number"
TOO_LONG = "its question was longer than the model's context"
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
    found = gaps(answer)
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


def gaps(answer: Answer) -> dict[Path, str]:
    """Return the leaves that an answer leaves out, each with the reason."""
    found = dict.fromkeys(answer.missing, MISSING) | dict.fromkeys(answer.unreadable, UNREADABLE)
    return found if answer.cut_at is None else found | {answer.cut_at: CUT}


def asked_again(group: Group, doubts: Mapping[Path, str]) -> Group:
    """Return a group's leaves at these paths as a group, the keys of their items with them.

    Last comes the one that an answer was cut in: should the next run on there, too, it has the others.
    """
    asked = group.restrict([leaf for leaf in group.leaves if leaf.path in doubts])
    cut_at = next((path for path, reason in doubts.items() if reason == CUT), None)
    return asked if cut_at is None else asked.ending_with(cut_at)


def parts(group: Group, doubts: Mapping[Path, str]) -> list[list[Path]]:
    """Return the leaves of a question in the smallest parts that can be asked apart, in its order.

    An array whose items no key joins is one part. A key is none beside other leaves of its items: it comes with each.
    """
    found: dict[Path, list[Path]] = {}
    for leaf in asked_again(group, doubts).leaves:
        if leaf.path in doubts and not (leaf.key and _comes_with(leaf.path, group, doubts)):
            is_whole = leaf.key or _whole_array(group, leaf.path)
            found.setdefault(_outermost(leaf.path) if is_whole else leaf.path, []).append(leaf.path)
    return list(found.values())


def _comes_with(key: Path, group: Group, doubts: Mapping[Path, str]) -> bool:
    """Tell whether a key is asked in any case, with other leaves of its items."""
    return any(not leaf.key and leaf.path in doubts and _is_in(leaf.path, key[:-1]) for leaf in group.leaves)


def halves(group: Group, doubts: Mapping[Path, str]) -> list[dict[Path, str]]:
    """Return what a question's leaves are asked in instead: two questions, or one that has no smaller parts.

    A doubtful key is a doubt of each that it comes with: its items are said anew, not only joined.
    """
    found = parts(group, doubts)
    middle = (len(found) + 1) // 2
    both = [{path: doubts[path] for part in half for path in part} for half in (found[:middle], found[middle:])]
    return [
        {leaf.path: doubts[leaf.path] for leaf in asked_again(group, half).leaves if leaf.path in doubts}
        for half in both
        if half
    ]


def settle(group: Group, first: Sequence[Finding], again: Sequence[Finding], asked: Iterable[Path]) -> list[Finding]:
    """Return what of a first answer is still to be merged beside the one to the doubtful leaves.

    An array that was asked as a whole, or for a doubtful key, counts as it was said the second time: of leaves that
    were not, items keep theirs if they are said again. Elsewhere a value that was found nowhere gives way to whatever
    was said the second time, null too.
    """
    asked_again = set(asked)
    answered = {finding.path for finding in again}
    replaced = {other for path in asked_again & answered for other in _whole_array(group, path)}
    leaves = {leaf.path: leaf for leaf in group.leaves}
    keys, said = _known_by(group, first), set(_known_by(group, again).values())

    def is_kept(finding: Finding) -> bool:
        if finding.path in replaced:
            return finding.path not in answered and keys.get(_item(finding.place)) in said
        is_found = finding.value is None or bool(finding.spans) or not leaves[finding.path].ground
        return is_found or finding.path not in asked_again & answered

    inside = {finding.place[:end] for finding in first if is_kept(finding) for end in range(len(finding.place))}

    def is_joining(finding: Finding) -> bool:
        return finding.path in replaced and leaves[finding.path].key and finding.place[:-1] in inside

    return [finding for finding in first if is_kept(finding) or is_joining(finding)]


def _known_by(group: Group, findings: Iterable[Finding]) -> dict[Place, frozenset[tuple[Path, Hashable]]]:
    """Return the keys of each outermost item that has any."""
    kinds = {leaf.path: leaf.kind for leaf in group.leaves if leaf.key and leaf.path[:-1] == _outermost(leaf.path)}
    found: dict[Place, set[tuple[Path, Hashable]]] = {}
    for finding in findings:
        if finding.path in kinds and finding.value is not None:
            form = normal_forms(finding.value, kinds[finding.path])
            found.setdefault(_item(finding.place), set()).add((finding.path, form))
    return {item: frozenset(keys) for item, keys in found.items()}


def _item(place: Place) -> Place:
    """Return the outermost item that a place is in."""
    return place[: len(_outermost(path_of(place)))]


def _outermost(path: Path) -> Path:
    """Return the path of the items of a leaf's outermost array; an empty one where it is in none."""
    return path[: path.index(ITEM) + 1] if ITEM in path else ()


def _is_in(path: Path, items: Path) -> bool:
    return path[: len(items)] == items


def _whole_array(group: Group, path: Path) -> list[Path]:
    """Return all leaves of a leaf's array, where new values could not be joined with old ones by keys; else none."""
    items = [path[:end] for end, part in enumerate(path, 1) if part == ITEM]
    keys = {leaf.path[:-1] for leaf in group.leaves if leaf.key}
    is_key = any(leaf.key and leaf.path == path for leaf in group.leaves)
    if not items or (not is_key and keys.issuperset(items)):
        return []
    return [leaf.path for leaf in group.leaves if _is_in(leaf.path, items[0])]
