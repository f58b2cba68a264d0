"""The dashboard: server-rendered pages that only read; their buttons call `/v1` like any client.

It keeps no state: numbers come from `jobs`, and actions go through the API's routes.
"""
