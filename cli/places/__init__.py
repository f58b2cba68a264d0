"""Where batches are run for a command that goes on where it was stopped: by a stack on this machine, or by a server.

Knows lines and their results; what is asked in them, `run`, `map` and `extract` know.
"""
