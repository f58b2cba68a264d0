"""The domain of the queue: tables, states, every query, budgets, fair share, files and the wire formats of lines.

Knows nothing of HTTP, Celery or torch.
"""
