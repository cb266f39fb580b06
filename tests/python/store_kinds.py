"""The kinds of stores that the core knows, so that a new one is in every test of all stores."""

from __future__ import annotations

import penstock


def _examples() -> list[str]:
    try:
        penstock.Limiter({}, store="unknown")
    except penstock.ConfigError as error:
        return str(error).partition(" such as ")[2].partition(";")[0].split(", ")
    raise AssertionError("a store without a scheme was accepted")


KINDS = {example.partition("://")[0]: example for example in _examples()}
"""An example of each kind, by its scheme."""
LOCAL = sorted(KINDS.keys() - {"redis"})
"""The kinds that need no server."""

assert KINDS.keys() >= {"memory", "shm", "redis"}
