"""Uploads in parts, as OpenAI's Uploads: their rows, and the file made from the parts.

No request to the object store is made within a transaction.
"""
