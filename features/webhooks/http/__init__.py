"""`/v1/webhook_endpoints`: who is told of a tenant's events, and what came of telling them.

Knows no batch and no SQL; control workers send what is due.
"""
