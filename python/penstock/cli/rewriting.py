"""Decorators of other rate limiters, written with the names of penstock."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Final, TypeAlias

from penstock._core import Limit
from penstock.errors import LimitError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# A decorator, and the keywords of the other package that it includes.
_Rewritten: TypeAlias = "tuple[str, frozenset[str]]"

# Options that have the same meaning, and the name here.
_SAME: Final = ("cost", "deduct_when", "exempt_when", "methods", "override_defaults", "scope")
_ADDRESS: Final = ("get_remote_address", "get_ipaddr")
_KEYS: Final = {
    "ip": "",
    "user": "by_user(missing='refuse')",
    "user_or_ip": "by_user",
}
_UNSAFE: Final = "['POST', 'PUT', 'PATCH', 'DELETE']"


def rewritten(package: str, name: str, call: ast.Call) -> _Rewritten | None:
    """Return a decorator of penstock for a call, and the keywords that it includes.

    `None` if the call cannot be translated without knowing what its arguments are.
    """
    if any(isinstance(argument, ast.Starred) for argument in call.args):
        return None
    keywords = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
    if (package, name) == ("django-ratelimit", "ratelimit"):
        return _django(call.args, keywords)
    second = "scope" if name == "shared_limit" else "key_func"
    form = _FLASK.get((package, name))
    return None if form is None else _flask(form, second, call.args, keywords)


def is_address(key: ast.expr) -> bool:
    """Return whether a key function is the client's address, which is the default here."""
    return ast.unparse(key).rpartition(".")[2] in _ADDRESS


def _flask(
    form: str, second: str, arguments: Sequence[ast.expr], keywords: Mapping[str, ast.expr]
) -> _Rewritten | None:
    """Translate `limit` and `shared_limit` of flask-limiter and slowapi."""
    given = {**dict(zip(("limit_value", second), arguments, strict=False)), **keywords}
    value = given.pop("limit_value", None)
    text = None if value is None else _limit_text(value)
    if text is None:
        return None
    known = {"limit_value"}
    options = [text]
    if (key := given.get("key_func")) is not None:
        known.add("key_func")
        if not is_address(key):
            options.append(f"id={ast.unparse(key)}")
    for option in _SAME:
        if option in given:
            known.add(option)
            options.append(f"{option}={ast.unparse(given[option])}")
    return form.format(", ".join(options)), frozenset(known)


def _django(arguments: Sequence[ast.expr], keywords: Mapping[str, ast.expr]) -> _Rewritten | None:
    """Translate `ratelimit` of django-ratelimit."""
    names = ("group", "key", "rate", "method", "block")
    given = {**dict(zip(names, arguments, strict=False)), **keywords}
    if "rate" not in given or "key" not in given or given.keys() - _DJANGO:
        return None
    text, id = _limit_text(given["rate"]), _id_of(given["key"])
    methods = _methods(given.get("method"))
    if text is None or id is None or methods is None:
        return None
    options = [text]
    if id:
        options.append(f"id={id}")
    if methods:
        options.append(f"methods={methods}")
    block = given.get("block")
    if isinstance(block, ast.Constant) and block.value is False:
        options.append("mode='shadow'")
    group = given.get("group")
    if group is None or (isinstance(group, ast.Constant) and group.value is None):
        return f"@limit({', '.join(options)}), from penstock.django", _DJANGO
    options.append(f"scope={ast.unparse(group)}")
    return f"@limit.shared({', '.join(options)}), from penstock.django", _DJANGO


_DJANGO: Final = frozenset({"group", "key", "rate", "method", "block"})


def _limit_text(value: ast.expr) -> str | None:
    """Return a limit that is written as a text here, if the text is known and valid."""
    if not isinstance(value, ast.Constant) or not isinstance(value.value, str):
        # A setting or a function, whose value is known only at run time.
        return ast.unparse(value) if isinstance(value, ast.Attribute | ast.Name) else None
    text = re.sub(r"\s*[,;|]\s*", "; ", value.value.strip())
    try:
        for part in text.split("; "):
            Limit.parse(part)
    except LimitError:
        return None
    return repr(text)


def _id_of(key: ast.expr) -> str | None:
    if not isinstance(key, ast.Constant) or not isinstance(key.value, str):
        return None
    kind, _, name = key.value.partition(":")
    if kind == "header" and name:
        return f"by_header({name.title()!r})"
    if kind in ("get", "post") and name:
        return f"lambda request: request.{kind.upper()}.get({name!r})"
    return _KEYS.get(key.value)


def _methods(method: ast.expr | None) -> str | None:
    """Return the list of methods; an empty text for all, `None` if it is not known."""
    if method is None or (isinstance(method, ast.Constant) and method.value is None):
        return ""
    name = ast.unparse(method).rpartition(".")[2]
    if name in ("ALL", "UNSAFE"):
        return "" if name == "ALL" else _UNSAFE
    try:
        found = ast.literal_eval(method)
    except ValueError:
        return None
    return repr([found] if isinstance(found, str) else list(found))


_FLASK: Final = {
    ("flask-limiter", "limit"): "@limits.limit({}), below the decorator of the route",
    ("flask-limiter", "shared_limit"): "@limits.shared({}), below the decorator of the route",
    ("slowapi", "limit"): "dependencies=[Depends(RateLimit({}))] on the route",
    ("slowapi", "shared_limit"): "dependencies=[Depends(RateLimit({}))] on each of the routes",
}
