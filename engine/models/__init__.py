"""Read a checkpoint and compute its layers: token rows in, hidden rows and logits out.

Knows no queue, no sampling and no process.
"""
