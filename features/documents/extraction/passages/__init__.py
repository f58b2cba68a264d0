"""A document's text as passages: stretches that have at most so many tokens, under the headings that they stand below.

Knows no model, no tokenizer and no index: what a text's tokens are, a function says that is given.
"""
