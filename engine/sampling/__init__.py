"""Sampling: logits to tokens and log-probabilities, by rows and their parameters."""
