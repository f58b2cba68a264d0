"""Pipelines: steps that put rows of tables through prompts; their runs and schedules."""
