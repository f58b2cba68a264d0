"""Models that batches may name, and the workers that serve them."""
