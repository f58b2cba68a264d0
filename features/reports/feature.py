"""The parts of the feature reports."""

from __future__ import annotations

from features.feature import Command, Feature, MenuEntry, Scopes, Section

FEATURE = Feature(
    name="reports",
    settings="features.reports.settings:ReportSettings",
    tables=("features.reports.tables",),
    routers=("features.reports.http.reports:router", "features.reports.http.subscriptions:router"),
    scopes=Scopes(
        read=("retrieveReport", "retrieveReportSubscription"),
        submit=("setReportSubscription", "deleteReportSubscription"),
    ),
    templates="features.reports",
    pages=("features.reports.pages.reports:router",),
    menu=(MenuEntry("/reports", "Reports"),),
    tones={"no_run": "warn"},
    control=("features.reports.work:WORK",),
    purges=("features.reports.mails:purges",),
    on_tenant_end=("features.reports.tenant_end:delete_all_of",),
    commands=(
        Command(
            "reports",
            "features.reports.commands.report_commands:app",
            Section.SERVER,
            "Reports: what became of a pipeline's day, beside the nights before.",
        ),
    ),
)
