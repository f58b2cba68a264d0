"""The endpoints of pipelines, schedules and runs. Control workers do the work."""
