"""Decide, step by step, who computes how many tokens over which blocks.

Knows counts and ids of blocks: no tensors, no text, no model.
"""
