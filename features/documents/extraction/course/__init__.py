"""An extraction in memory: questions about documents, reading of answers, and the resulting records.

No files, batches or order of documents.
"""
