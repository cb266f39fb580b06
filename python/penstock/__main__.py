"""`python -m penstock`: the command line."""

from penstock._cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
