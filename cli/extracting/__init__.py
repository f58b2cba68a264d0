"""`tokenmill extract`: fields from documents, by an extraction of a service.

Uploads, progress, files and the terminal; the service reads the documents and asks the model.
"""
