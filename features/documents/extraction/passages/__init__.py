"""A document's text as passages of limited token counts, with the headings above them.

The caller supplies the function that counts tokens.
"""
