"""Definitions shared by packages and processes: sampling parameters and their ranges, passages, turns between tenants.

Uses only the standard library, so that `jobs` checks lines with it and `engine` runs it from a bare checkout.
"""
