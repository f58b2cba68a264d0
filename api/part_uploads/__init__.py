"""`/v1/uploads`: large files that come in parts, as OpenAI's Uploads.

What an upload is, and how one file is made of its parts, `jobs.uploads` knows.
"""
