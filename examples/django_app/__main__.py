"""`python examples/django_app`: make the tables, then serve."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

if __name__ == "__main__":
    from django_app.manage import main

    main(["migrate", "--verbosity", "0"])
    # Not the reloading one, which would make the tables again in a process of its own.
    main(["runserver", "--noreload", *sys.argv[1:]])
