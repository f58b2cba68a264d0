"""Collections of documents, and what was read of them."""
