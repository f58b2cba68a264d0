"""What runs, and how it does: looks at a stack or a server, and how they are shown."""
