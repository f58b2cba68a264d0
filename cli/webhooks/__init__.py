"""`tokenmill webhooks …`: who is told of a tenant's events."""
