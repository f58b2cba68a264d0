"""Passages for the prompts of a batch's lines: retrieved by extra batches, inserted into the input before it starts.

Independent of indexes and models: the caller passes a function that names the embedder of an index.
"""
