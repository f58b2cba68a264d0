"""Webhooks: endpoints of tenants that are told of events."""
