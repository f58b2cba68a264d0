"""`/v1/files`: upload, list, read, delete and download files."""
