"""What a run reports: samples.py, trackers.py (TensorBoard, wandb, trackio), html.py with chart.py."""
