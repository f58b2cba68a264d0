"""The parts of the feature administration."""

from __future__ import annotations

from features.feature import Command, Feature, MenuEntry, Scopes, Section

FEATURE = Feature(
    name="administration",
    routers=(
        "api.admin.tenants:router",
        "api.admin.keys:router",
        "api.admin.budgets:router",
        "api.admin.models:router",
        "api.admin.workers:router",
        "api.admin.log:router",
    ),
    scopes=Scopes(
        admin=(
            *("listTenants", "createTenant", "retrieveTenant", "changeTenant", "disableTenant", "enableTenant"),
            "deleteTenant",
            *("listOperatorKeys", "createOperatorKey", "listKeys", "createKey", "rotateKey", "revokeKey"),
            *("listBudgets", "setBudget", "removeBudget", "listKnownModels", "addModel", "setPrices", "removeModel"),
            *("listWorkers", "drainWorker", "resumeWorker", "readAdminLog"),
        ),
    ),
    commands=(
        Command(
            "tenants", "cli.admin.tenants:app", Section.ADMINISTRATION, "Tenants: who owns files, batches and a budget."
        ),
        Command("keys", "cli.admin.keys:app", Section.ADMINISTRATION, "API keys of tenants, and of operators."),
        Command("workers", "cli.admin.workers:app", Section.ADMINISTRATION, "Workers: who works, and who has to go."),
        Command("admin", "cli.admin.log:app", Section.ADMINISTRATION, "What operators changed."),
        Command(
            "db", "cli.admin.database:app", Section.ADMINISTRATION, "The database: its schema, and its object store."
        ),
        Command(
            "audit",
            "cli.admin.database:audit",
            Section.ADMINISTRATION,
            "Prove that no result is missing, repeated or billed wrongly; exit status 1 with findings.",
        ),
    ),
    pages=("api.dashboard.pages.tenants:router",),
    menu=(
        MenuEntry("/tenants", "Tenants", for_tenants=False, for_operators=True),
        MenuEntry("/log", "Admin log", for_tenants=False, for_operators=True),
    ),
)
