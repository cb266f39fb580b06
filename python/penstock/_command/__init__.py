"""Commands that need more than the core, one file each.

What reads a log or counts in arrays is imported when a command runs, and not before: to list the
commands, or to check a limits file, takes none of it.
"""
