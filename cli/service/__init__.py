"""The service that a command posts to: a server, the one that runs on the data directory, or one for the command."""
