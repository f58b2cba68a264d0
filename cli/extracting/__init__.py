"""`tokenmill extract`: fields from documents, in resumable stages.

Files, batches, progress and the terminal; `features.documents.extraction` makes prompts and reads answers.
"""
