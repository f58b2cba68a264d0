"""`tokenmill pipelines`, `schedules`, `runs` and `stores`.

The operator's stores are changed in Postgres, all else through the API.
"""
