"""Sessions of browsers over HTTP: those of the caller's key, and for operators everybody's.

The cookie itself is made by `api.dashboard.signing_in` and read by `api.auth`.
"""
