"""The objects of the wire: what the endpoints answer, field by field, and how each is made of a row.

Knows no request, no query and no status.
"""
