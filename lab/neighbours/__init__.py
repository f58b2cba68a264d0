"""Delays of one tenant caused by other tenants or by broken parts, on stacks of any revision."""
