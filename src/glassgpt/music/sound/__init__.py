"""A performance as sound: render.py (files, players) and synth.py (the built-in piano)."""
