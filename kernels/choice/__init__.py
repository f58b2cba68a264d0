"""Which product a model's weights on a CPU are multiplied by: measured once, weighed, and kept for the next start.

Knows shapes and times, no model and no layer.
"""
