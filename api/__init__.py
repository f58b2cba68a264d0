"""The HTTP edge: parses requests, calls `jobs`, answers in OpenAI's format.

Redis only counts rates; no request waits for it.
"""
