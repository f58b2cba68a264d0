"""Replay workloads through the real scheduler at a step cost instead of on a device.

Knows no model and no tensor; the engine never imports it.
"""
