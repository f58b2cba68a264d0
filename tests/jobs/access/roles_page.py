"""Writes the tables of docs/database_roles.md, after its last line of prose, from `jobs.access.rights`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from jobs.access import FUNCTIONS, PREPARE, SCALER, SERVICE, TABLES, Right

ROLES_OF_CALLS = (SERVICE, PREPARE, SCALER)
PAGE = Path(__file__).resolve().parents[3] / "docs" / "database_roles.md"
MARK = "<!-- from here on: python -m tests.jobs.access.roles_page -->\n"


def with_tables(prose: str) -> str:
    """Return a page with its own prose up to the mark, followed by the current tables."""
    rights = {name: [_rights(found.of(role)) for role in (SERVICE, PREPARE)] for name, found in TABLES.items()}
    calls = {name: ["call" if role in roles else "–" for role in ROLES_OF_CALLS] for name, roles in FUNCTIONS.items()}
    tables = [*_table("table", (SERVICE, PREPARE), rights), *_table("function", ROLES_OF_CALLS, calls), ""]
    return prose.partition(MARK)[0] + MARK + "\n".join(tables)


def _table(kind: str, roles: Sequence[str], cells: Mapping[str, Sequence[str]]) -> Iterator[str]:
    yield f"\n| {kind} | {' | '.join(f'`{role}`' for role in roles)} |"
    yield "|---" * (len(roles) + 1) + "|"
    yield from (f"| `{name}` | {' | '.join(own)} |" for name, own in cells.items())


def _rights(rights: frozenset[Right]) -> str:
    return ", ".join(right.value.lower() for right in Right if right in rights) or "–"


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
