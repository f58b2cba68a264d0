"""Studies that developers run from a checkout: chaos, simulations, comparisons with other engines, whole stacks.

Not part of the wheel; measurements of an installation are in `benchmarks`.
"""
