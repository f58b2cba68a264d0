"""The sender of sample events, one per API process."""

from __future__ import annotations

from api.services import Services
from features.webhooks.sending import Sender
from features.webhooks.settings import WebhookSettings
from jobs.storage import Storage


def open_sender(settings: WebhookSettings, _storage: Storage) -> Sender:
    """Return the sender of an API process."""
    return Sender(settings.allowed_networks)


def sender_of(services: Services) -> Sender:
    """Return the sender that `open_sender` made for this process."""
    sender = services.of_features["webhooks"]
    assert isinstance(sender, Sender)
    return sender
