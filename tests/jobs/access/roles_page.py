"""Writes the tables of docs/database_roles.md, after its last line of prose, from `jobs.access.rights`."""

from __future__ import annotations

from pathlib import Path

from jobs.access import FUNCTIONS, PREPARE, SERVICE, TABLES, Right

PAGE = Path(__file__).resolve().parents[3] / "docs" / "database_roles.md"
MARK = "<!-- from here on: python -m tests.jobs.access.roles_page -->\n"
_RULE = "|---|---|---|"


def with_tables(prose: str) -> str:
    """Return a page with its own prose up to the mark, followed by the current tables."""
    rights = [f"| `{name}` | {_said(found.service)} | {_said(found.prepare)} |" for name, found in TABLES.items()]
    calls = [f"| `{name}` | {_said_of(name, SERVICE)} | {_said_of(name, PREPARE)} |" for name in FUNCTIONS]
    tables = [f"\n| {kind} | `{SERVICE}` | `{PREPARE}` |" for kind in ("table", "function")]
    return "\n".join([prose.partition(MARK)[0] + MARK + tables[0], _RULE, *rights, tables[1], _RULE, *calls, ""])


def _said(rights: frozenset[Right]) -> str:
    return ", ".join(right.value.lower() for right in Right if right in rights) or "–"


def _said_of(function: str, role: str) -> str:
    return "call" if role in FUNCTIONS[function] else "–"


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
