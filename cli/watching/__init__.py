"""Work that goes on elsewhere, as a terminal follows it: its progress, its bar, and patience with a server."""
