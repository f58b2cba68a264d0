"""LoRA adapters: what they change, their weights on the device, and those in memory."""
