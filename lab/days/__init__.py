"""A recorded day of a service, replayed with other settings: the real fair order and scheduler on a virtual clock.

Knows no database; `benchmarks.day` reads a day from its file.
"""
