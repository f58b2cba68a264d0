"""Schedules that are due in the same minute, from their due time until the first batch of each run is validated."""
