"""A recorded day of a service, replayed with other settings: the real fair order and scheduler on a virtual clock.

Knows no database; `jobs.day_record` reads a day from one.
"""
