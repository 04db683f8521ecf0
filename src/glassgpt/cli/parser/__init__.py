"""The command line's parser. `options.py` reads from a command's signature what can be typed, `parse.py`
parses the words, `paths.py` checks every path, and `help.py` writes --help."""
