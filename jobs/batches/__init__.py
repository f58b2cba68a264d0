"""A batch from submission to its files: every move of its state, and the leases it lost.

Knows no HTTP, no worker and no engine.
"""
