"""A small shop in Django. Its limits are in limits.yaml."""
