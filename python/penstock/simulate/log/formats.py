"""Formats of access logs, as their servers' configuration writes them.

Source: nginx, `log_format` and its variables; Apache, `mod_log_config`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.simulate.log.errors import LogError
from penstock.validation import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["FORMATS", "Field", "LineFormat", "line_format"]

# Our words for what servers call differently.
_NGINX: Final = {
    "body_bytes_sent": "bytes",
    "bytes_sent": "bytes",
    "host": "host",
    "http_referer": "referer",
    "http_user_agent": "user_agent",
    "http_x_forwarded_for": "forwarded_for",
    "msec": "time",
    "remote_addr": "address",
    "remote_user": "user",
    "request_method": "method",
    "request_uri": "target",
    "time_iso8601": "time",
    "time_local": "time",
    "uri": "path",
}
_APACHE: Final = {
    "B": "bytes",
    "O": "bytes",
    "U": "path",
    "V": "host",
    "a": "address",
    "b": "bytes",
    "h": "address",
    "l": "ident",
    "m": "method",
    "p": "port",
    "r": "request",
    "s": "status",
    "t": "time",
    "u": "user",
    "v": "host",
}
_NUMBERS: Final = {"bytes", "port", "status"}
# Of several times the finest.
_TIMES: Final = ("msec", "time_iso8601", "time_local", "time")
_FROM_REQUEST: Final = {"method": "method", "path": "path", "target": "target"}

_NGINX_FIELD: Final = re.compile(r"\$(?:(\w+)|\{(\w+)\})")
_APACHE_FIELD: Final = re.compile(
    r"%(?:!?\d{3}(?:,\d{3})*)?[<>]?(?:\{(?P<detail>[^}]*)\})?[<>]?(?P<letter>\^?[A-Za-z]{1}(?<!\^)|\^\w\w|%)"
)
_NGINX_DIRECTIVE: Final = re.compile(
    r"\s*log_format\s+\S+(?:\s+escape=\w+)?\s+(.*?);?\s*", re.DOTALL
)
_APACHE_DIRECTIVE: Final = re.compile(r'\s*LogFormat\s+"((?:[^"\\]|\\.)*)"(?:\s+\S+)?\s*')
_QUOTED: Final = re.compile(r"'((?:[^'\\]|\\.)*)'|\"((?:[^\"\\]|\\.)*)\"")


class Field(NamedTuple):
    """A field of a line.

    Attributes:
        before: The signs before it.
        name: What messages call it.
        names: All that it may be asked for by.
        is_number: Whether it is digits, or `-`.
    """

    before: str
    name: str
    names: frozenset[str]
    is_number: bool


class LineFormat(NamedTuple):
    """How a line is made of fields.

    Attributes:
        name: What people call it.
        fields: Its fields, in order.
        tail: The signs after the last.
        is_open: Whether a line may go on after a space.
    """

    name: str
    fields: tuple[Field, ...]
    tail: str
    is_open: bool = False

    @property
    def known(self) -> list[str]:
        """What may be asked for; a field goes by its server's name for it, too."""
        names = {field.name for field in self.fields}
        return sorted(names | (set(_FROM_REQUEST) if "request" in names else set()))

    def time(self, wanted: str | None) -> int:
        """Give the place of the field that says when.

        Raises:
            LogError: The format has no such field.
        """
        for name in _TIMES if wanted is None else (wanted,):
            for place, field in enumerate(self.fields):
                if name in field.names:
                    return place
        if wanted is None:
            raise LogError(
                f"the format has no time, found {self.name!r}; "
                "it needs $time_local, $time_iso8601, $msec or %t"
            )
        raise self._unknown("time", wanted)

    def place(self, what: str, wanted: str) -> tuple[int, str]:
        """Give the place of a field by its name, and what part of it is meant.

        Raises:
            LogError: The format has no such field.
        """
        for place, field in enumerate(self.fields):
            if wanted in field.names:
                return place, "whole"
        if wanted in _FROM_REQUEST:
            for place, field in enumerate(self.fields):
                if "request" in field.names:
                    return place, _FROM_REQUEST[wanted]
        raise self._unknown(what, wanted)

    def _unknown(self, what: str, wanted: str) -> LogError:
        return LogError(
            f"{what} must be a field of the format {self.name}, found {wanted!r}; "
            f"{did_you_mean(wanted, self.known)}"
        )


def line_format(text: str) -> LineFormat:
    """Read a format: one of the names in `FORMATS`, or as nginx or Apache configure it.

    The whole directive may be given as it stands in the configuration, or only the format in it.

    Raises:
        LogError: A format with no fields, or with two that nothing stands between.

    >>> [field.name for field in line_format('$remote_addr [$time_local] $status').fields]
    ['address', 'time', 'status']
    """
    if text in FORMATS:
        return FORMATS[text]
    if match := _NGINX_DIRECTIVE.fullmatch(text):
        pieces = [a or b for a, b in _QUOTED.findall(match[1])]
        return _made(text, _nginx("".join(pieces) if pieces else match[1]))
    if match := _APACHE_DIRECTIVE.fullmatch(text):
        return _made(text, _apache(re.sub(r"\\(.)", r"\1", match[1])))
    if _NGINX_FIELD.search(text):
        return _made(text, _nginx(text))
    if "%" in text:
        return _made(text, _apache(text))
    raise LogError(
        f"format must be 'auto', a name, or a format string of nginx ('$remote_addr …') or Apache "
        f"('%h …'), found {text!r}; {did_you_mean(text, [*FORMATS, *_OTHERS])}"
    )


_OTHERS: Final = ("auto", "csv", "jsonl", "parquet")


def _made(name: str, parts: Iterable[tuple[str, tuple[str, ...]]]) -> LineFormat:
    """Make a format of texts, each with the names of the field after it; none after the last."""
    fields: list[Field] = []
    before = ""
    for text, names in parts:
        before += text
        if not names:
            continue
        if fields and not before:
            raise LogError(
                f"something must stand between {fields[-1].name} and {names[0]}, or nobody can "
                f"tell where one ends, found {name!r}"
            )
        is_number = names[0] in _NUMBERS
        fields.append(Field(before, names[0], frozenset(names), is_number))
        before = ""
    if not fields:
        raise LogError(f"a format has at least a field for the time, found {name!r}")
    return LineFormat(name, tuple(fields), before)


def _nginx(text: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    end = 0
    for match in _NGINX_FIELD.finditer(text):
        variable = match[1] or match[2]
        yield text[end : match.start()], (_NGINX.get(variable, variable), variable)
        end = match.end()
    yield text[end:], ()


def _apache(text: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    end = 0
    for match in _APACHE_FIELD.finditer(text):
        before, end = text[end : match.start()], match.end()
        letter, detail = match["letter"], match["detail"]
        if letter == "%":
            yield f"{before}%", ()
        elif letter == "t" and not detail:
            yield f"{before}[", ("time", "t")
            yield "]", ()
        elif letter == "i" and detail:
            name = detail.lower().replace("-", "_")
            ours = _NGINX.get(f"http_{name}", f"http_{name}")
            yield before, (ours, f"http_{name}", detail)
        else:
            yield before, (_APACHE.get(letter, letter), f"{detail}{letter}" if detail else letter)
    yield text[end:], ()


_COMMON: Final = '%h %l %u %t "%r" %>s %b'
_COMBINED: Final = f'{_COMMON} "%{{Referer}}i" "%{{User-Agent}}i"'
_MAIN: Final = (
    '$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent '
    '"$http_referer" "$http_user_agent" "$http_x_forwarded_for"'
)

FORMATS: Final = {
    # In the order in which they are tried: each of these lines is one of the next format, too.
    "vhost_combined": _made("vhost_combined", _apache(f"%v:%p {_COMBINED}"))._replace(is_open=True),
    "main": _made("main", _nginx(_MAIN))._replace(is_open=True),
    "combined": _made("combined", _apache(_COMBINED))._replace(is_open=True),
    "common": _made("common", _apache(_COMMON))._replace(is_open=True),
}
"""Formats by name. A line may go on after their fields, with what a site has added."""
