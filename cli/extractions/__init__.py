"""`tokenmill extractions …`: what the API tells of extractions, as tables and lines.

Knows no document: `tokenmill extract` makes extractions of its own out of files.
"""
