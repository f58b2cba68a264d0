"""Guess the coming tokens of a sequence, where that pays.

Knows tokens and seconds: no model, no blocks.
"""
