"""`tokenmill pipelines`, `schedules`, `runs` and `stores`.

Knows no SQL but for the operator's stores: the rest goes through the API.
"""
