"""What processes agree on: what a line may ask of the sampler, and within which ranges.

The standard library alone, so that `jobs` checks a line by it and `engine` runs it from a bare checkout.
"""
