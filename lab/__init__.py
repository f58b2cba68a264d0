"""Studies that developers run from a checkout: chaos, simulations, comparisons with other engines, whole stacks.

The wheel has none of it; what measures an installation is in `benchmarks`.
"""
