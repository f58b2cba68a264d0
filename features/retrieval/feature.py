"""The parts of the feature `retrieval`."""

from __future__ import annotations

from features.feature import Command, Feature, MenuEntry, Scopes, Section

FEATURE = Feature(
    name="retrieval",
    settings="features.retrieval.settings:RetrievalSettings",
    tables=("features.retrieval.tables",),
    routers=("features.retrieval.http.indexes:router", "features.retrieval.http.searches:router"),
    services={"search": "features.retrieval.http.service:open_search"},
    scopes=Scopes(
        read=(
            *("listIndexes", "retrieveIndex"),
            "searchIndex",  # also needs submit if a model embeds the question
        ),
        submit=("createIndex", "deleteIndex"),
    ),
    commands=(
        Command(
            "indexes",
            "features.retrieval.commands:app",
            Section.SERVER,
            "Build and search passage indexes.",
        ),
    ),
    templates="features.retrieval",
    pages=("features.retrieval.pages.indexes:router",),
    menu=(MenuEntry("/indexes", "Indexes"),),
    recipes=("features.retrieval.work:make_recipe", "features.retrieval.work:make_fill_recipe"),
    holders=("features.retrieval.fills.holder:HOLDER",),
    purges=("features.retrieval.purging:purges",),
    stored_bytes=("features.retrieval.lifecycle:stored_bytes",),
    meters={"api": "features.retrieval.meters:API"},
)
