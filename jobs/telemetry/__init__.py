"""What processes tell of themselves: meters, log lines and traces, alike in every role.

Knows no tables and no role: what is worth a number, a line or a span is for others to say.
"""
