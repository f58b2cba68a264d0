"""The passes of an extraction: questions for a model, readings of its answers, and which values are accepted.

No engine, batch or file: messages out, text in.
"""
