"""Endpoints of reports."""
