"""Settings of webhooks."""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Network, ip_network

from pydantic import field_validator

from jobs.settings import Settings


class WebhookSettings(Settings):
    webhook_networks: str = ""
    """Networks that webhooks may be sent into beside public addresses, such as `10.0.0.0/8,127.0.0.1/32`; then `http`
    URLs are allowed, too. What stands there can be asked by every tenant."""

    @field_validator("webhook_networks")
    @classmethod
    def _check_networks(cls, given: str) -> str:
        _networks(given)
        return given

    @property
    def allowed_networks(self) -> tuple[IPv4Network | IPv6Network, ...]:
        return _networks(self.webhook_networks)


def _networks(given: str) -> tuple[IPv4Network | IPv6Network, ...]:
    return tuple(ip_network(part.strip()) for part in given.split(",") if part.strip())
