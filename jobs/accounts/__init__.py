"""Tenants, their keys and budgets, and what results cost.

Knows no chunk and no line.
"""
