"""The parts of the feature dashboard."""

from __future__ import annotations

from features.feature import Feature, MenuEntry, Scopes

FEATURE = Feature(
    name="dashboard",
    routers=("api.own_sessions:router",),
    scopes=Scopes(
        read=("listSessions", "endSession", "endSessions"),  # the key's own: who may sign in may sign out
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
