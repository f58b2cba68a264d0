"""Schedules of pipelines: when their runs are due."""
