"""Passages for the prompts of a batch's lines: a flow looks them up in extra batches, and writes the input anew."""
