"""Tool calls as models write them: the forms, read from output and written into prompts.

Knows text and JSON: no engine, no SQL.
"""
