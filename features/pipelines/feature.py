"""The parts of the feature pipelines."""

from __future__ import annotations

from features.feature import Command, Feature, MenuEntry, Scopes, Section

FEATURE = Feature(
    name="pipelines",
    settings="features.pipelines.settings:PipelineSettings",
    tables=("features.pipelines.tables",),
    routers=(
        "features.pipelines.http.tables:router",
        "features.pipelines.http.previews:router",
        "features.pipelines.http.definitions:router",
        "features.pipelines.http.schedules:router",
        "features.pipelines.http.runs:router",
    ),
    bodies=(
        "features.pipelines.http.definitions:PipelineBody",
        "features.pipelines.http.definitions:ChangePipelineBody",
    ),
    scopes=Scopes(
        read=(
            "readTable",
            "listPipelines",
            "retrievePipeline",
            "listSchedules",
            "retrieveSchedule",
            "listRuns",
            "retrieveRun",
        ),
        submit=(
            *("createRequests", "createPipeline", "changePipeline", "deletePipeline", "previewPipeline"),
            *("createSchedule", "changeSchedule", "deleteSchedule", "pauseSchedule", "resumeSchedule"),
            "backfillSchedule",
            *("createRun", "cancelRun", "resumeRun", "deleteRun"),
        ),
    ),
    commands=(
        Command(
            "map",
            "cli.mapping.command:map_",
            Section.MACHINE,
            "Send every row of a table through a prompt, and write the rows with columns for the answers.",
        ),
        Command(
            "pipelines",
            "features.pipelines.commands.pipeline_commands:app",
            Section.SERVER,
            "Pipelines: steps that send rows through prompts.",
        ),
        Command(
            "schedules",
            "features.pipelines.commands.schedule_commands:app",
            Section.SERVER,
            "Schedules: when pipelines run.",
        ),
        Command("runs", "features.pipelines.commands.run_commands:app", Section.SERVER, "Runs of pipelines."),
        Command(
            "stores",
            "features.pipelines.commands.store_commands:app",
            Section.ADMINISTRATION,
            "Stores: folders and buckets that a tenant's pipelines may use.",
        ),
    ),
    templates="features.pipelines",
    pages=("features.pipelines.pages.pipelines:router",),
    menu=(MenuEntry("/pipelines", "Pipelines"),),
    tones={"succeeded": "good", "skipped": "warn"},
    recipes=("features.pipelines.work:make_recipe",),
    purges=("features.pipelines.runs.purging:purges",),
    on_tenant_end=("features.pipelines.lifecycle:stop_queued_of",),
    meters={"queue": "features.pipelines.meters:QUEUE"},
    counts=("features.pipelines.meters:OPEN_RUNS", "features.pipelines.meters:FAILED_SCHEDULES"),
)
