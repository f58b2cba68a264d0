"""The HTTP edge: parse a request, call `jobs`, answer in OpenAI's format.

Knows nothing of Celery, Redis, engines or SQL.
"""
