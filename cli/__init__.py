"""The `tokenmill` command: HTTP client, role starters, the embedded stack. Loads a command when it is called."""
