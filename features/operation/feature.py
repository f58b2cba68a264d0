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
            "Run Postgres, Valkey, the API and a worker here until Ctrl-C; a restart continues with the same data.",
        ),
        Command(
            "status",
            "cli.status.commands:status",
            Section.RUNNING,
            "Show roles, queue and workers of the stack here, or of the server at TOKENMILL_BASE_URL.",
        ),
        Command(
            "top",
            "cli.status.top:top",
            Section.RUNNING,
            "Refresh `status` every two seconds, with tokens per second, until Ctrl-C.",
        ),
        Command("logs", "cli.status.role_logs:logs", Section.RUNNING, "Show the logs of the roles of `tokenmill up`."),
        Command(
            "doctor",
            "cli.status.commands:doctor",
            Section.RUNNING,
            "Check what the service needs: database, broker, store, clock, disk, GPU; say how to fix what is wrong.",
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
        Command(
            "worker",
            "cli.roles:worker",
            Section.ROLES,
            "Run the engine of one model, or ask a server of it, and process its chunks.",
        ),
        Command(
            "autoscale",
            "cli.models.autoscaling:autoscale",
            Section.ROLES,
            "Run a command that sets the number of a model's workers whenever its deadlines need another one.",
        ),
        Command(
            "prepare",
            "cli.roles:prepare",
            Section.ROLES,
            "Parse and split documents, find passages and ground answers (Celery, CPU only).",
        ),
        Command("bench", "cli.bench_commands:app", Section.MEASUREMENTS, "Benchmarks of the engine and the service."),
    ),
)
