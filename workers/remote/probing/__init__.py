"""What a server does with a parameter, seen by tiny requests: the probes, how they are asked and judged and when.

Capabilities are effects that were seen (ADR 54).
"""
