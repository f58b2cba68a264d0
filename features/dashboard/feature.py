"""The parts of the feature dashboard."""

from __future__ import annotations

from features.feature import Command, Feature, MenuEntry, Scopes, Section

FEATURE = Feature(
    name="dashboard",
    routers=("api.browser_sessions.own:router", "api.browser_sessions.everybodys:router"),
    scopes=Scopes(
        read=("listSessions", "endSession", "endSessions"),  # the key's own: who may sign in may sign out
        admin=("listAllSessions", "endAllSessions", "endAnySession", "endSessionsOfKey"),
    ),
    commands=(
        Command(
            "sessions",
            "cli.admin.sessions:app",
            Section.ADMINISTRATION,
            "Browsers that are signed in to the dashboard.",
        ),
    ),
    pages=(
        "api.dashboard.signing_in:router",
        "api.dashboard.pages.overview:router",
        "api.dashboard.pages.health:router",
        "api.dashboard.pages.plots:router",
        "api.dashboard.pages.sessions:router",
    ),
    menu=(
        MenuEntry("/", "Overview", for_operators=True),
        MenuEntry("/health", "Health", for_tenants=False, for_operators=True),
    ),
)
