"""`/v1/uploads`: large files in parts, like OpenAI's Uploads.

`jobs.uploads` keeps the uploads and joins their parts.
"""
