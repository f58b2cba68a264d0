"""When flows expect to end, compared with when they end."""
