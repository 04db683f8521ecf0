"""Drawings, for every room, the docs and the recipes. Read svg.py (elements, text, colors), figure.py (marks
that become SVG, HTML or PNG) and axes.py (ticks, curves, legends)."""
