"""What a run shows of itself: samples.py, trackers.py (TensorBoard, wandb, trackio), html.py with chart.py."""
