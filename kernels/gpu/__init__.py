"""What the Triton kernels share: the backend, and attention, the longest of them.

Knows no op of a CPU and nothing of the engine.
"""
