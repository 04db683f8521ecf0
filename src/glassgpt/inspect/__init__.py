"""Model -> insight: what a model is made of and whether it computes what it should."""
