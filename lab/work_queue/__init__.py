"""`tokenmill bench queue`: what queue, Postgres and roles carry, with an engine that computes nothing.

Starts stacks of its own, with fsync on, in folders that are thrown away.
"""
