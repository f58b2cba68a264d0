"""Confidence of values from the results of the passes: a score, calibrated once there is gold."""
