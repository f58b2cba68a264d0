"""Keep output to a grammar: compiled beside the loop, masks written while the device computes.

Knows no model and no queue of the scheduler.
"""
