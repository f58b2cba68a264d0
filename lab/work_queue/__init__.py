"""`tokenmill bench queue`: the capacity of queue, Postgres and roles, with an engine that computes nothing.

Starts its own stacks, with fsync on, in temporary folders.
"""
