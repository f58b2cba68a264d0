"""The parts of the feature accounts."""

from __future__ import annotations

from features.feature import Command, Feature, MenuEntry, Scopes, Section

FEATURE = Feature(
    name="accounts",
    routers=("api.usage:router", "api.quota:router"),
    scopes=Scopes(read=("readUsage", "readQuota")),
    commands=(
        Command(
            "usage",
            "cli.spending.usage_commands:usage",
            Section.SERVER,
            "Show tokens, cost and GPU-seconds by day, model, key and batch; by default of the last 30 days (UTC).",
        ),
        Command(
            "quota",
            "cli.spending.usage_commands:quota",
            Section.SERVER,
            "Show budgets and limits: what is used, what is left, and when each resets.",
        ),
        Command(
            "budgets",
            "cli.spending.budget_commands:app",
            Section.ADMINISTRATION,
            "Budgets per day, month and key, in tokens or money.",
        ),
    ),
    pages=("api.dashboard.pages.usage:router",),
    menu=(MenuEntry("/usage", "Usage", for_operators=True),),
)
