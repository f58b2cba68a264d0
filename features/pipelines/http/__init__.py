"""The endpoints of pipelines, their schedules and their runs.

Knows no SQL and carries nothing out: control workers do.
"""
