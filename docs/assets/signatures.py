"""A Griffe extension: a class without `__init__` has the signature of its `__new__`."""

from __future__ import annotations

from typing import Any

import griffe


class Signatures(griffe.Extension):
    """Shows `__new__` of the classes of the core as the signature of the class."""

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        """Add an `__init__` with the parameters of `__new__`, which the class then shows."""
        new = cls.members.get("__new__")
        if isinstance(new, griffe.Function) and "__init__" not in cls.members:
            first, *others = new.parameters
            parameters = griffe.Parameters(griffe.Parameter("self", kind=first.kind), *others)
            init = griffe.Function("__init__", parameters=parameters, lineno=new.lineno)
            cls.set_member("__init__", init)
