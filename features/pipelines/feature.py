"""The parts of the feature pipelines."""

from __future__ import annotations

from features.feature import Command, Feature, MenuEntry, Scopes, Section

FEATURE = Feature(
    name="pipelines",
    tables=("jobs.tables.pipelines",),
    routers=(
        "api.pipelines.previews:router",
        "api.pipelines.definitions:router",
        "api.pipelines.schedules:router",
        "api.pipelines.runs:router",
    ),
    bodies=("api.pipelines.definitions:PipelineBody", "api.pipelines.definitions:ChangePipelineBody"),
    scopes=Scopes(
        read=("listPipelines", "retrievePipeline", "listSchedules", "retrieveSchedule", "listRuns", "retrieveRun"),
        submit=(
            *("createPipeline", "changePipeline", "deletePipeline", "previewPipeline"),
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
            "Put every row of a table through a prompt, and write the rows with the answers' columns.",
        ),
        Command(
            "pipelines",
            "cli.pipelines.pipeline_commands:app",
            Section.SERVER,
            "Pipelines: rows through prompts, in steps.",
        ),
        Command("schedules", "cli.pipelines.schedule_commands:app", Section.SERVER, "Schedules: when pipelines run."),
        Command("runs", "cli.pipelines.run_commands:app", Section.SERVER, "Runs of pipelines."),
        Command(
            "stores",
            "cli.pipelines.store_commands:app",
            Section.ADMINISTRATION,
            "Stores that operators register for a tenant's pipelines.",
        ),
    ),
    pages=("api.dashboard.pages.pipelines:router",),
    menu=(MenuEntry("/pipelines", "Pipelines"),),
    control=("workers.turns.runs:WORK",),
    purges=("jobs.pipelines.runs.purging:purges",),
)
