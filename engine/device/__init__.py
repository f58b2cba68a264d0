"""The engine's device: its choice, memory, copies between host and device, energy."""
