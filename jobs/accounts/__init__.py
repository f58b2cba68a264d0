"""Accounts: tenants, their keys and budgets, and the cost of results.

Independent of chunks and lines.
"""
