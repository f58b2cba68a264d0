"""Bytes of a file into one text with its places: pages, boxes, cells, headings.

Knows nothing of fields, prompts or models; nothing here opens a socket or writes a file.
"""
