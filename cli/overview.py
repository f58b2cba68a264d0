"""`tokenmill --help`: the commands, by who needs them.

Knows their names alone; what each says of itself it is asked for.
"""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

SECTIONS = {
    "On this machine": ("up", "run", "map", "extract"),
    "What runs": ("status", "top", "logs", "doctor"),
    "On a server": (
        *("batch", "files", "extractions", "indexes", "pipelines", "schedules", "runs", "webhooks", "usage"),
        "quota",
    ),
    "Administration": ("tenants", "keys", "budgets", "models", "stores", "workers", "admin", "db", "audit"),
    "Roles": ("api", "control", "dispatch", "worker", "prepare"),
    "Measurements": ("bench",),
}
_WHOLE = 1_000
"""Characters: descriptions are wrapped, and not cut."""


class Overview(TyperGroup):
    """Lists its commands in sections; one that is in none would be missing, so a test compares them."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for title, names in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, self.commands[name].get_short_help_str(_WHOLE)) for name in names])
