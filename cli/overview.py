"""`tokenmill --help`: the commands, by who needs them.

Knows their names alone; what each says of itself it is asked for.
"""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

SECTIONS = {
    "On this machine": ("up", "run", "map", "extract"),
    "What runs": ("status", "top", "logs", "doctor"),
    "On a server": (
        *("batch", "files", "extractions", "indexes", "pipelines", "schedules", "runs", "webhooks", "usage"),
        "quota",
    ),
    "Administration": (
        *("tenants", "keys", "sessions", "budgets", "models", "stores", "workers", "admin", "db"),
        "audit",
    ),
    "Roles": ("api", "control", "dispatch", "worker", "prepare"),
    "Measurements": ("bench",),
}
_WHOLE = 1_000
"""Characters: descriptions are wrapped, and not cut."""
_SHOULD_BE = "Input should be "  # as pydantic begins


class Interrupted(Exception):  # no error: somebody wanted it so
    """Ctrl-C, which typer would end without a word."""


class Overview(TyperGroup):
    """Lists its commands in sections; one that is in none would be missing, so a test compares them."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for title, names in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, self.commands[name].get_short_help_str(_WHOLE)) for name in names])

    def invoke(self, ctx: Any) -> Any:
        """Run the command. A value that cannot be one of its option is named; pydantic, which checks it, does not."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            error.message = _said_of_value(error)
            raise
        except KeyboardInterrupt:
            raise Interrupted from None

    def make_context(self, *given: Any, **named: Any) -> Any:
        """Read the command line."""
        try:
            return super().make_context(*given, **named)
        except KeyboardInterrupt:
            raise Interrupted from None


def _said_of_value(error: typer.BadParameter) -> str:
    """Return what was given and what is allowed, where pydantic found it; the rest is ours and stays as it is."""
    found_by = getattr(error.__cause__, "errors", None)
    if found_by is None:
        return error.message
    found = found_by(include_url=False)[0]
    allowed = str(found["msg"]).removeprefix(_SHOULD_BE)
    if allowed == found["msg"]:
        return allowed.removeprefix("Value error, ")
    return f"{found['input']!r} is given; it must be {allowed.partition(', unable')[0]}"
