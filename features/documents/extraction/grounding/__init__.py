"""Locates quotes and values in a text: exactly, normalised, fuzzily, or not at all.

Spans are offsets into the given text.
"""
