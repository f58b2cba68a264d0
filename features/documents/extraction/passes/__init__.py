"""The passes of an extraction as values: what a model is asked, what its answer says, and what of it is believed.

Knows no engine, no batch and no file: messages out, text in.
"""
