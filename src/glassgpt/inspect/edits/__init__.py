"""Changes to a forward pass. Read edits.py (the kinds), edit_data.py (their JSON), intervene.py (before and
after)."""
