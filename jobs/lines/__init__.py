"""Lines of input and output files: parameters, checks and errors of a request, and the format of its answer.

Pure: bytes and values; no SQL, no storage.
"""
