"""Endpoints of lines."""
