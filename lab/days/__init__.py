"""A recorded day of a service, replayed with other settings: the real fair order and scheduler on a virtual clock.

`benchmarks.day` reads a day from its file; there is no database.
"""
