"""Collections of documents and the results of reading them."""
