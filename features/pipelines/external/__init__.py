"""The stores that operators register: a folder of this machine or a bucket. Files in, files out.

Knows no table.
"""
