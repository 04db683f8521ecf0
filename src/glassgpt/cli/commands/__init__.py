"""The commands: each module has a typed function `command`, which tyro turns into a command line."""
