"""What every role does before it serves."""
