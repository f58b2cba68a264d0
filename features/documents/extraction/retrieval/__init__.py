"""Passage search in memory: by words, by vectors, or by both.

Callers store the arrays and embed texts.
"""
