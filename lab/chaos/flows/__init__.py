"""Flows of all recipes under the same faults: what they hand out, and what they cost, is known beforehand."""
