"""Confined processes for untrusted input: they may hang, grow, die or be taken over, and have access to nothing.

Their parents start, feed and end them; their work is defined elsewhere.
"""
