"""Does this machine compute what it should? `glassgpt verify`: every mode of running a model against the
reference. Read plan.py (backends, devices, dtypes), reference.py (the plain pass and its rounding error),
modes.py and layer_modes.py (ways to run a model), checks.py (the comparison)."""
