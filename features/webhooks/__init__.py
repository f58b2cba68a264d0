"""Webhooks: tenants' endpoints that receive events."""
