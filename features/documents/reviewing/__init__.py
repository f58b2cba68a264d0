"""Reviews of completed extractions: what is looked at, who has it, what was decided, and what it comes to.

Knows not how a record is made, and changes none: what people say is kept beside it.
"""
