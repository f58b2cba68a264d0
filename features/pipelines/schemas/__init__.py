"""Response objects of pipelines, schedules, runs and tables."""
