"""The worker processes: the control worker, the dispatcher and the workers that answer chunks.

Postgres is the source of truth; a Celery message is a hint that may be lost or repeated.
"""
