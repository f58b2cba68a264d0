"""`tokenmill bench dashboard`: what the pages cost the database, and fifty open ones all processes.

Starts a Postgres and an API of its own, in a folder that is thrown away.
"""
