"""Running the service on a machine: its roles, their health, the stack of one command."""
