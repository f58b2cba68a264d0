"""Middleware of every request: guard, request id, log, metrics, unexpected errors."""
