"""What every request passes: guard, request id, metrics, unexpected errors.

Knows no endpoint.
"""
