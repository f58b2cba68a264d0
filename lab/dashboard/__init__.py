"""`tokenmill bench dashboard`: the cost of pages for the database, and of fifty open ones for all processes.

Starts its own Postgres and API, in a temporary folder.
"""
