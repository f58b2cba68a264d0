"""The `tokenmill` command: HTTP client, role starters, the embedded stack. Imports every other package lazily."""
