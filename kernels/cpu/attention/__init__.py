"""Paged attention on a CPU, cut into tiles and rounds that stay near the core.

Knows the cache's order, no other op and no model.
"""
