"""Queries of the dashboard: a few bounded ones each, for one tenant or, with None, for all.

Reads only, except for the points of plots, which it stores.
"""
