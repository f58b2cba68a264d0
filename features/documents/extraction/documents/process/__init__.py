"""Reads files in separate processes, which may hang, grow or die: only one document fails, and the next is read.

Only the child processes look at untrusted bytes.
"""
