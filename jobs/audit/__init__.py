"""The proof on live data that nothing is missing, repeated or billed twice.

Reads only. Knows no HTTP and mends nothing.
"""
