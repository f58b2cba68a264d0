"""The parts of the feature reports."""

from __future__ import annotations

from features.feature import Command, Feature, MenuEntry, Scopes, Section

FEATURE = Feature(
    name="reports",
    routers=("features.reports.http.reports:router",),
    scopes=Scopes(read=("retrieveReport",)),
    templates="features.reports",
    pages=("features.reports.pages.reports:router",),
    menu=(MenuEntry("/reports", "Reports"),),
    tones={"no_run": "warn"},
    commands=(
        Command(
            "reports",
            "features.reports.commands.report_commands:app",
            Section.SERVER,
            "Reports: what became of a pipeline's day, beside the nights before.",
        ),
    ),
)
