"""Reads files into one text with positions: pages, boxes, cells, headings.

Nothing here opens a socket or writes a file.
"""
