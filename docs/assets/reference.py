"""Griffe extensions for the pages of the API reference."""

from __future__ import annotations

import re
from typing import Any, Final

import griffe

# A paragraph of a docstring that begins with a prompt, outside a section such as "Examples:".
_EXAMPLE: Final = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)


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


class Examples(griffe.Extension):
    """Shows examples as code; Markdown takes `>>>` for quotations."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Fence the examples of a docstring."""
        if obj.docstring is not None:
            obj.docstring.value = _EXAMPLE.sub(r"```pycon\n\g<0>\n```", obj.docstring.value)
