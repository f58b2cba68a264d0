"""How sure a value is, from what the passes know of it: as a score, and, once there is gold, as a calibrated one.

Knows no model and no gold file; log-probabilities come as the API answers them.
"""
