"""Engines that answer lines: ours and those of others, what they can do, and which lines they may take."""
