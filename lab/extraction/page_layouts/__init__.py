"""Pages whose text, reading order and cells are known, generated from a seed in two independent families of layouts."""
