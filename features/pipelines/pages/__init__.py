"""Pages of pipelines, runs and schedules."""
