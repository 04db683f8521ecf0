"""The second edition's training text, from public repositories: readers, cleaning, duplicates, leaks."""
