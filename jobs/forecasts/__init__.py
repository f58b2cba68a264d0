"""Forecasts: when batches end, what they wait for, and how fast their models' workers are.

Read-only estimates: no scheduling decision depends on them.
"""
