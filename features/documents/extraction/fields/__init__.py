"""Fields to extract: the leaves of a schema, the groups in which they are asked, and the meaning of values."""
