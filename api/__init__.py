"""The HTTP edge: parse a request, call `jobs`, answer in OpenAI's format.

Knows nothing of Celery, engines or SQL; Redis counts rates, and nothing waits for it.
"""
