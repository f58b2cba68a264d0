"""Claims of control workers: who is at a batch, a run or an extraction, and until when.

Knows not what is done under one.
"""
