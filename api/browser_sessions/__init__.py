"""Sessions of browsers over HTTP: those of the caller's key, and for operators everybody's.

Knows no cookie: `api.auth` reads it, and `api.dashboard.signing_in` makes it.
"""
