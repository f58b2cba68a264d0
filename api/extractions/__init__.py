"""`/v1/collections` and `/v1/extractions`: requests for what `jobs.extractions` does.

Knows no document and no course.
"""
