"""Reference outputs: the slices of an output that are compared, and attention by definition."""
