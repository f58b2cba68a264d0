"""Turns rows into the lines of a batch, and joins its results to the rows."""
