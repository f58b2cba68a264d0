"""The parts of the feature operation."""

from __future__ import annotations

from features.feature import Command, Feature, Scopes, Section

FEATURE = Feature(
    name="operation",
    routers=("api.health:router",),
    scopes=Scopes(open=("isAlive", "isReady", "readMetrics")),
    commands=(
        Command(
            "up",
            "cli.up_command:up",
            Section.MACHINE,
            "Run Postgres, Valkey, the API and a worker here until Ctrl-C; started again, it goes on with the same "
            "data.",
        ),
        Command(
            "status",
            "cli.status.commands:status",
            Section.RUNNING,
            "Show what runs here, or on the server of TOKENMILL_BASE_URL: roles, queue, workers.",
        ),
        Command(
            "top",
            "cli.status.top:top",
            Section.RUNNING,
            "Show the same as `status` again and again, with tokens per second, until Ctrl-C.",
        ),
        Command(
            "logs", "cli.status.role_logs:logs", Section.RUNNING, "Show what the roles of `tokenmill up` have written."
        ),
        Command(
            "doctor",
            "cli.status.commands:doctor",
            Section.RUNNING,
            "Examine what the service needs: database, broker, store, clock, disk, GPU; say what is wrong and what to "
            "do.",
        ),
        Command("api", "cli.roles:api", Section.ROLES, "Serve the HTTP API."),
        Command(
            "control",
            "cli.roles:control",
            Section.ROLES,
            "Validate batches, write their files, advance runs, extractions and indexes, send webhooks (Celery, CPU "
            "only).",
        ),
        Command(
            "dispatch",
            "cli.roles:dispatch",
            Section.ROLES,
            "Pick the next work by fair share and send hints to the workers.",
        ),
        Command("worker", "cli.roles:worker", Section.ROLES, "Run one model's engine and work off its chunks."),
        Command(
            "prepare",
            "cli.roles:prepare",
            Section.ROLES,
            "Read and cut documents, find passages and ground answers (Celery, CPU only).",
        ),
        Command("bench", "cli.bench_commands:app", Section.MEASUREMENTS, "Measure the engine on this machine."),
    ),
)
