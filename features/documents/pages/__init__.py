"""Pages of documents, extractions and reviews."""
