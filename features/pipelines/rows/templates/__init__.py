"""Prompt templates of users: checked before anything runs, rendered in a process that they cannot harm others from.

Knows no files, no models and no lines: names and values in, messages out.
"""
