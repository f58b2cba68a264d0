"""Batches that grow: lines are added while others run, and are one input at the end."""
