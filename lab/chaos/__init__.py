"""`tokenmill bench chaos`: the real roles under faults, with an engine that computes nothing and has known answers.

Needs `pip install tokenmill[dev]`. Nothing in the product imports it.
"""
