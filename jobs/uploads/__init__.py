"""Files that come in parts, as OpenAI's Uploads: their rows, and the one file that is made of the parts.

Knows no HTTP. Nothing here asks the object store in a transaction.
"""
