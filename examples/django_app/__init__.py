"""A small shop in Django: what may be asked how often stands in limits.yaml beside this file."""
