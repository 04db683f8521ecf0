"""How results render themselves: display.py (notebook, HTML, SVG, PNG) and plots.py (one function for each
result)."""
