"""The parts of the feature webhooks."""

from __future__ import annotations

from features.feature import Command, Feature, Scopes, Section

FEATURE = Feature(
    name="webhooks",
    settings="features.webhooks.settings:WebhookSettings",
    tables=("features.webhooks.tables",),
    routers=("features.webhooks.http.routes:router", "features.webhooks.http.deliveries:router"),
    services={"webhooks": "features.webhooks.http.service:open_sender"},
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
            "features.webhooks.commands:app",
            Section.SERVER,
            "Notify URLs when batches end or runs fail, and list what was sent.",
        ),
    ),
    control=("features.webhooks.work:WORK",),
    purges=("features.webhooks.deliveries:purges",),
    meters={"control": "features.webhooks.meters:CONTROL"},
    on_event=("features.webhooks.events:emit",),
    on_tenant_end=("features.webhooks.endpoints:delete_endpoints_of",),
)
