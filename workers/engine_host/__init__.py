"""Keeps one engine alive, and what was asked of it: token ids in, token ids out.

Knows no text, no SQL and no chunk.
"""
