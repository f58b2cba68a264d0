"""Lines that need no engine: documents read and cut, and answers grounded in them, by confined processes.

Knows no engine and no SQL: chunks are claimed and held as a GPU worker does.
"""
