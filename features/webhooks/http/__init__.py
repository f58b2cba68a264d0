"""`/v1/webhook_endpoints`: a tenant's endpoints and their deliveries, which control workers send."""
