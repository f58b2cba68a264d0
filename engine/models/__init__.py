"""Read a checkpoint and compute its layers: token rows in, hidden rows and logits out."""
