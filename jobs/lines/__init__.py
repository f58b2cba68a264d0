"""One line of an input or output file: what it may ask, what is wrong with it, how its answer is written.

Pure: bytes and values; no SQL, no storage.
"""
