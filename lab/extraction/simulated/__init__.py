"""Simulated papers, and answers about them as models err."""
