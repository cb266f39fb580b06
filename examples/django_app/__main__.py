"""`python examples/django_app`: create the tables, then start the server."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

if __name__ == "__main__":
    from django_app.manage import main

    main(["migrate", "--verbosity", "0"])
    # Without the autoreloader, which would create the tables again in another process.
    main(["runserver", "--noreload", *sys.argv[1:]])
