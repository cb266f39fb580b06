"""The command line, one file per command.

Commands that need NumPy import it when they run, so that `penstock check` needs only the core.
"""
