"""Passages for the prompts of a batch's lines: asked for by batches of their own, put into its input before it starts.

Knows no index and no model: what a query has to be embedded with, a function says that is given.
"""
