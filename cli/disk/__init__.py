"""Files of the user: reads and checks inputs, writes outputs atomically."""
