"""Who may come in, how fast, and how much of it at once: what `api.door` asks.

Knows no request and no endpoint.
"""
