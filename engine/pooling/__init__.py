"""Turn texts into vectors, and pairs of texts into scores, with bidirectional encoders.

Knows no KV cache, no scheduler, no queue and no index.
"""
