"""One reader a format: bytes of a file into a document.

Knows no process and no clock: what a reader may cost is held by who calls it.
"""
