"""What a variant of the model adds to training: the memory's consecutive segments, and their state."""
