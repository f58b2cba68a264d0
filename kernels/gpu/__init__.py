"""What the Triton kernels share: the backend, and attention, the longest of them."""
