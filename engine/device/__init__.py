"""Where the engine runs: choice, memory, copies between host and device, joules.

Knows no sampling, no text and no request's parameters.
"""
