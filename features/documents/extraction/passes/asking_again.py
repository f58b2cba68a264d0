"""Which leaves are asked again, why, in which questions, and how their answers are combined with the first.

Doubtful leaves are asked once more; leaves that an answer left out are asked in halves: see `DocumentReading`.
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
    """Return the leaves of a group to ask again, each with the first reason, for `hunter_request`."""
    leaves = {leaf.path: leaf for leaf in group.leaves}
    reasons = gaps(answer)
    for finding in findings:
        if finding.value is not None and leaves[finding.path].ground and not finding.spans:
            reasons.setdefault(finding.path, UNGROUNDED)
    for finding in findings:
        if finding.agreement is Agreement.DIFFERS:
            reasons.setdefault(finding.path, CONTRADICTED)
    for violation in violations:
        for path in violation.paths:
            if path in leaves:
                reasons.setdefault(path, violation.reason)
    for path in list(reasons):
        for other in _whole_array(group, path):
            reasons.setdefault(other, reasons[path])
    return {leaf.path: reasons[leaf.path] for leaf in group.leaves if leaf.path in reasons}


def fewer_reasons(doubts: Mapping[Path, str]) -> Iterator[dict[Path, str | None]]:
    """Yield doubts with fewer and fewer reasons: longest reasons become None first, and finally no leaves remain."""
    remaining: dict[Path, str | None] = dict(doubts)
    for reason in sorted(set(doubts.values()), key=lambda reason: (-len(reason), reason)):
        remaining = {path: None if each == reason else each for path, each in remaining.items()}
        yield remaining
    yield {}


def gaps(answer: Answer) -> dict[Path, str]:
    """Return the leaves that an answer leaves out, each with the reason."""
    reasons = dict.fromkeys(answer.missing, MISSING) | dict.fromkeys(answer.unreadable, UNREADABLE)
    return reasons if answer.cut_at is None else reasons | {answer.cut_at: CUT}


def asked_again(group: Group, doubts: Mapping[Path, str]) -> Group:
    """Return the leaves of a group at these paths as a group, with the keys of their items.

    The leaf that an answer was cut in comes last: if the next answer is cut there too, it has the others.
    """
    again = group.restrict([leaf for leaf in group.leaves if leaf.path in doubts])
    cut_at = next((path for path, reason in doubts.items() if reason == CUT), None)
    return again if cut_at is None else again.ending_with(cut_at)


def parts(group: Group, doubts: Mapping[Path, str]) -> list[list[Path]]:
    """Return the leaves of a question in the smallest parts that can be asked separately, in order.

    An array without keys to join its items is one part. A key beside other leaves of its items is no separate part:
    it is asked with each of them.
    """
    leaves_of_part: dict[Path, list[Path]] = {}
    for leaf in asked_again(group, doubts).leaves:
        if leaf.path in doubts and not (leaf.key and _comes_with(leaf.path, group, doubts)):
            is_whole = leaf.key or _whole_array(group, leaf.path)
            leaves_of_part.setdefault(_outermost(leaf.path) if is_whole else leaf.path, []).append(leaf.path)
    return list(leaves_of_part.values())


def _comes_with(key: Path, group: Group, doubts: Mapping[Path, str]) -> bool:
    """Tell whether a key is asked anyway, with other leaves of its items."""
    return any(not leaf.key and leaf.path in doubts and _is_in(leaf.path, key[:-1]) for leaf in group.leaves)


def halves(group: Group, doubts: Mapping[Path, str]) -> list[dict[Path, str]]:
    """Return smaller questions for a question's leaves: two, or one if it has no smaller parts.

    A doubtful key is a doubt in each question that includes it: its items are read again, not only joined.
    """
    all_parts = parts(group, doubts)
    middle = (len(all_parts) + 1) // 2
    both = [{path: doubts[path] for part in half for path in part} for half in (all_parts[:middle], all_parts[middle:])]
    return [
        {leaf.path: doubts[leaf.path] for leaf in asked_again(group, half).leaves if leaf.path in doubts}
        for half in both
        if half
    ]


def settle(group: Group, first: Sequence[Finding], again: Sequence[Finding], asked: Iterable[Path]) -> list[Finding]:
    """Return the findings of a first answer to merge with the answer about doubtful leaves.

    An array that was asked as a whole, or for a doubtful key, counts as in the second answer; leaves that were not
    asked keep their values in items that the second answer has too. Elsewhere an ungrounded value is replaced by the
    second answer, null included.
    """
    asked_again = set(asked)
    answered = {finding.path for finding in again}
    replaced = {other for path in asked_again & answered for other in _whole_array(group, path)}
    leaves = {leaf.path: leaf for leaf in group.leaves}
    keys, repeated = _known_by(group, first), set(_known_by(group, again).values())

    def is_kept(finding: Finding) -> bool:
        if finding.path in replaced:
            return finding.path not in answered and keys.get(_item(finding.place)) in repeated
        is_found = finding.value is None or bool(finding.spans) or not leaves[finding.path].ground
        return is_found or finding.path not in asked_again & answered

    inside = {finding.place[:end] for finding in first if is_kept(finding) for end in range(len(finding.place))}

    def is_joining(finding: Finding) -> bool:
        return finding.path in replaced and leaves[finding.path].key and finding.place[:-1] in inside

    return [finding for finding in first if is_kept(finding) or is_joining(finding)]


def _known_by(group: Group, findings: Iterable[Finding]) -> dict[Place, frozenset[tuple[Path, Hashable]]]:
    """Return the keys of each outermost item that has any."""
    kinds = {leaf.path: leaf.kind for leaf in group.leaves if leaf.key and leaf.path[:-1] == _outermost(leaf.path)}
    keys_of: dict[Place, set[tuple[Path, Hashable]]] = {}
    for finding in findings:
        if finding.path in kinds and finding.value is not None:
            form = normal_forms(finding.value, kinds[finding.path])
            keys_of.setdefault(_item(finding.place), set()).add((finding.path, form))
    return {item: frozenset(keys) for item, keys in keys_of.items()}


def _item(place: Place) -> Place:
    """Return the outermost item that a place is in."""
    return place[: len(_outermost(path_of(place)))]


def _outermost(path: Path) -> Path:
    """Return the path of the items of a leaf's outermost array; empty for a leaf outside arrays."""
    return path[: path.index(ITEM) + 1] if ITEM in path else ()


def _is_in(path: Path, items: Path) -> bool:
    return path[: len(items)] == items


def _whole_array(group: Group, path: Path) -> list[Path]:
    """Return all leaves of a leaf's array if keys cannot join new values with old ones; else none."""
    items = [path[:end] for end, part in enumerate(path, 1) if part == ITEM]
    keys = {leaf.path[:-1] for leaf in group.leaves if leaf.key}
    is_key = any(leaf.key and leaf.path == path for leaf in group.leaves)
    if not items or (not is_key and keys.issuperset(items)):
        return []
    return [leaf.path for leaf in group.leaves if _is_in(leaf.path, items[0])]
