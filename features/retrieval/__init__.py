"""Indexes of passages: built of collections, searched by words and by vectors."""
