"""An extraction as values: what each document is asked, how answers are read, and the record that comes of them.

Knows no file, no batch and no order of documents.
"""
