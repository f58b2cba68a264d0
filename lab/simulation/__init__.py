"""Replay workloads through the real scheduler with simulated step costs instead of a device.

Uses no model and no tensors; the engine never imports it.
"""
