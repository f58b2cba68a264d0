"""The parts of the feature batches."""

from __future__ import annotations

from features.feature import Command, Feature, MenuEntry, Scopes, Section

FEATURE = Feature(
    name="batches",
    routers=(
        "api.batches.creating:router",
        "api.batches.routes:router",
        "api.batches.changing:router",
        "api.batches.retries:router",
        "api.batches.decisions:router",
        "api.batches.events:router",
        "api.batches.estimates:router",
    ),
    bodies=("api.batches.creating:CreateBatchBody", "api.batches.estimates:EstimateBody"),
    lines=("api.schemas.batches:ResultLine",),
    scopes=Scopes(
        read=("listBatches", "retrieveBatch", "listResults", "listDecisions", "streamBatch", "retrieveEstimate"),
        submit=("createBatch", "changeBatch", "retryBatch", "cancelBatch", "deleteBatch", "createEstimate"),
    ),
    commands=(
        Command(
            "run", "cli.run_command:run", Section.MACHINE, "Run a batch file through a model and write the results."
        ),
        Command(
            "batch", "cli.batches.commands:app", Section.SERVER, "Create, follow and read batches on a running server."
        ),
    ),
    pages=(
        "api.dashboard.pages.batches:router",
        "api.dashboard.pages.batch:router",
        "api.dashboard.pages.submit:router",
    ),
    menu=(
        MenuEntry("/batches", "Batches", for_operators=True),
        MenuEntry("/submit", "Submit", needs_submit=True),
    ),
)
