"""What the parameters are and say: tally.py (counts), weights.py (`gpt.weights`, one matrix per head),
neurons.py (the tokens that neurons read and write)."""
