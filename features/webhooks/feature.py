"""The parts of the feature webhooks."""

from __future__ import annotations

from features.feature import Command, Feature, Scopes, Section

FEATURE = Feature(
    name="webhooks",
    tables=("jobs.tables.webhooks",),
    routers=("api.webhooks.routes:router", "api.webhooks.deliveries:router"),
    services={"webhooks": "api.webhooks.service:open_sender"},
    scopes=Scopes(
        read=("listWebhookEndpoints", "retrieveWebhookEndpoint", "listWebhookDeliveries", "listWebhookEventTypes"),
        submit=(
            *("createWebhookEndpoint", "updateWebhookEndpoint", "deleteWebhookEndpoint", "rotateWebhookSecret"),
            *("testWebhookEndpoint", "replayWebhookDelivery"),
        ),
    ),
    commands=(
        Command(
            "webhooks",
            "cli.webhooks.commands:app",
            Section.SERVER,
            "Have URLs told when batches end or runs fail, and see what was sent to them.",
        ),
    ),
    control=("workers.webhooks:WORK",),
    purges=("jobs.webhooks.deliveries:purges",),
    meters={"control": "jobs.webhooks.meters:CONTROL"},
    on_event=("jobs.webhooks.events:emit",),
    on_tenant_end=("jobs.webhooks.endpoints:delete_endpoints_of",),
)
