"""The course of each document of an extraction: where it is, what comes next, and the lines that ask about it."""
