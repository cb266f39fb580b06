"""The command line. `main.py` has the table of commands; each command is a separate module."""
