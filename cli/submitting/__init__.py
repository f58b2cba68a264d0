"""Submits the work of a command to a service so that the same command finds it again, and writes its results."""
