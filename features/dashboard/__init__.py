"""The dashboard: signing in, browser sessions, and the pages of no other feature."""
