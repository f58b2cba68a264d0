"""Pipelines: rows of tables through prompts, in steps; their runs and schedules."""
