"""What is asked of a document: the leaves of a schema, the groups they are asked in, and what their values mean.

Knows no document, no model and no request.
"""
