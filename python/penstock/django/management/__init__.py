"""Commands of Django's `manage.py`."""
