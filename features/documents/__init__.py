"""Documents: reading them, and extracting records whose values are located in the text."""
