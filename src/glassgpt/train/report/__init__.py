"""The reports of a run: samples.py, trackers.py (TensorBoard, wandb, trackio), html.py with chart.py."""
