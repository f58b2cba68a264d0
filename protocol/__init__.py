"""What packages and processes share: what a line may ask of the sampler, within which ranges, and whose turn it is.

The standard library alone, so that `jobs` checks a line by it and `engine` runs it from a bare checkout.
"""
