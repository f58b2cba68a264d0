"""Indexes of collections: built as a course of batches, searched by words, by vectors or by both.

Knows no model and no parser: prepare workers cut what is read, and vectors are what a batch of embeddings answers.
"""
