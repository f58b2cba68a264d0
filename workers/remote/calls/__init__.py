"""Calls of a server: which request is sent when, and when a line is asked again."""
