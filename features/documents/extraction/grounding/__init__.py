"""Where quotes and values stand in a text: exactly, but for their print, nearly, or nowhere.

Knows no schema's paths, no model and no page; spans are offsets into the text that was given.
"""
