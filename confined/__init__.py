"""Processes that handle what strangers had a hand in: they may hang, grow or die, and have nothing of their parent's.

Knows nothing of what they do.
"""
