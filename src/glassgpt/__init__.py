"""GPT-2 made of glass: run it, see inside it, train and tune one, serve it, check it."""

__version__ = "0.1.0"
