"""`/v1/collections` and `/v1/extractions`: requests for what `features.documents` does.

Knows no document and no course.
"""
