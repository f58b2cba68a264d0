"""Paged attention on a CPU, divided into tiles and rounds that stay in the core's caches."""
