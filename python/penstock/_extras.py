"""The optional dependencies of adapters, metrics and simulations."""

from __future__ import annotations

from typing import Final


class Extra:
    """Block of imports, whose error says which extra of penstock to install.

    Args:
        name: The extra, as in `pip install "penstock[flask]"`.
    """

    def __init__(self, name: str) -> None:
        self._name: Final = name

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if isinstance(error, ModuleNotFoundError):
            error.msg += f"; run `pip install 'penstock[{self._name}]'`"
