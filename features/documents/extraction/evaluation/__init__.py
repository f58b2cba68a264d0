"""Evaluation of records against gold: correctness, places, and calibration of scores."""
