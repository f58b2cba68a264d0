"""Retention: purge what has expired, roll up what is old, and hold deletions during a backup.

Schedules are set by the callers.
"""
