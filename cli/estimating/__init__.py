"""Estimates the tokens of lines before they run, on this machine or by a server."""
