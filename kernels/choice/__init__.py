"""Choice of the product for each of a model's weights on a CPU: measured once, weighed, and kept for later starts."""
