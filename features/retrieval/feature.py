"""The parts of the feature retrieval."""

from __future__ import annotations

from features.feature import Command, Feature, MenuEntry, Scopes, Section

FEATURE = Feature(
    name="retrieval",
    tables=("jobs.tables.indexes",),
    routers=("api.indexes.indexes:router", "api.indexes.searches:router"),
    services={"search": "api.indexes.service:open_search"},
    scopes=Scopes(
        read=(
            *("listIndexes", "retrieveIndex"),
            "searchIndex",  # asks for submit where a model embeds the question
        ),
        submit=("createIndex", "deleteIndex"),
    ),
    commands=(
        Command(
            "indexes",
            "cli.indexes.commands:app",
            Section.SERVER,
            "Indexes on a server: passages of collections, found.",
        ),
    ),
    pages=("api.dashboard.pages.indexes:router",),
    menu=(MenuEntry("/indexes", "Indexes"),),
    control=("workers.turns.indexes:WORK",),
    purges=("jobs.indexes.purging:purges",),
    meters={"api": "jobs.indexes.meters:API"},
)
