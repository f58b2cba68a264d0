"""What one tenant waits for another, or for what is broken, on stacks of any revision."""
