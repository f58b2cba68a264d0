"""`tokenmill bench chaos`: the real roles under faults, with an engine that costs nothing and whose answers are known.

Needs what `pip install tokenmill[dev]` brings. Nothing of the product knows of it.
"""
