"""The API's response objects, field by field, and how each is made from a row."""
