"""Tenants, their keys and their budgets.

Knows no batch and no line.
"""
