"""The processes that work: control tasks, the dispatcher, and the GPU worker that hosts the engine.

Postgres is the truth; a Celery message is a hint that may be lost or repeated.
"""
