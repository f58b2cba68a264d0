"""Products of weights that stay packed in memory: whole numbers of 4 or 8 bits in groups of 32."""
