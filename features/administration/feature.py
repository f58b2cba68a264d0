"""The parts of the feature administration."""

from __future__ import annotations

from features.feature import Command, Feature, MenuEntry, Scopes, Section

FEATURE = Feature(
    name="administration",
    routers=(
        "features.administration.http.tenants:router",
        "features.administration.http.keys:router",
        "features.administration.http.sessions:router",
        "features.administration.http.budgets:router",
        "features.administration.http.models:router",
        "features.administration.http.scaling:router",
        "features.administration.http.workers:router",
        "features.administration.http.log:router",
    ),
    scopes=Scopes(
        admin=(
            *("listTenants", "createTenant", "retrieveTenant", "changeTenant", "disableTenant", "enableTenant"),
            "deleteTenant",
            *("listOperatorKeys", "createOperatorKey", "listKeys", "createKey", "rotateKey", "revokeKey"),
            *("listBudgets", "setBudget", "removeBudget", "listKnownModels", "addModel", "setPrices", "removeModel"),
            *("listAllSessions", "endAllSessions", "endAnySession", "endSessionsOfKey"),
            *("listScaling", "setScaling", "removeScaling"),
            *("listWorkers", "drainWorker", "resumeWorker", "readAdminLog"),
        ),
    ),
    commands=(
        Command(
            "tenants",
            "features.administration.commands.tenants:app",
            Section.ADMINISTRATION,
            "Tenants: owners of files, batches and a budget.",
        ),
        Command(
            "keys",
            "features.administration.commands.keys:app",
            Section.ADMINISTRATION,
            "API keys of tenants and operators.",
        ),
        Command(
            "sessions",
            "features.administration.commands.sessions:app",
            Section.ADMINISTRATION,
            "Browser sessions of the dashboard.",
        ),
        Command(
            "workers",
            "features.administration.commands.workers:app",
            Section.ADMINISTRATION,
            "Workers: list, drain and resume.",
        ),
        Command(
            "admin",
            "features.administration.commands.log:app",
            Section.ADMINISTRATION,
            "The log of changes by operators.",
        ),
        Command(
            "db",
            "cli.database.commands:app",
            Section.ADMINISTRATION,
            "The database: its schema, backups and object store.",
        ),
        Command(
            "audit",
            "cli.database.commands:audit",
            Section.ADMINISTRATION,
            "Check that no result is missing, repeated or billed wrongly; exit status 1 with findings.",
        ),
    ),
    templates="features.administration",
    pages=("features.administration.pages.tenants:router",),
    menu=(
        MenuEntry("/tenants", "Tenants", for_tenants=False, for_operators=True),
        MenuEntry("/log", "Admin log", for_tenants=False, for_operators=True),
    ),
)
