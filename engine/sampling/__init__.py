"""Logits become tokens and log-probabilities.

Knows rows and their parameters: no queue, no blocks, no model.
"""
