"""Runs the batches of resumable commands, on a stack on this machine or on a server.

`run`, `map` and `extract` write the lines and read the results.
"""
