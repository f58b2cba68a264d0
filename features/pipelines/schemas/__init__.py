"""Bodies of pipelines, schedules, runs and tables."""
