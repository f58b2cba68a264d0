"""The engine in a process of its own, and the messages between it and its parent.

Knows no text, and of requests only how to hand them on.
"""
