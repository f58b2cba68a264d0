"""Rows become the lines of a batch, and its results the columns beside them.

Knows no server and no file of the user: rows, templates and results in, bytes and rows out.
"""
