"""Compile functions of a parameter block with numba and LLVM, and run them on torch's threads."""
