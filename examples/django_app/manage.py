"""`python examples/django_app/manage.py runserver`, and all other commands."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


def main(arguments: list[str]) -> None:
    """Run a command of Django."""
    from django.core.management import execute_from_command_line  # noqa: PLC0415  after the path

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "django_app.settings")  # noqa: TID251  Django's
    execute_from_command_line(["manage.py", *arguments])


if __name__ == "__main__":
    main(sys.argv[1:])
