"""The domain of the queue: tables, states, every query, budgets, fair share, files and the wire formats of lines.

Independent of HTTP, Celery and torch.
"""
