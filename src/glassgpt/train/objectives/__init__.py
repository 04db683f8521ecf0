"""Training objectives: objective.py (language modeling, masked or not), classification.py; loss.py."""
