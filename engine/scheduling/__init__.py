"""Scheduling: which sequences compute how many tokens over which blocks in each step. Counts and ids, no tensors."""
