"""Indexes of passages: built from collections, searched by words and by vectors."""
