"""Collections of documents, and extractions: fields asked of all of them, as a fixed course of batches.

Knows not how a document is read or a value found; that is `extraction`'s.
"""
