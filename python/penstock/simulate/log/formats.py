"""Formats of access logs, in the syntax of the servers' configuration.

Source: nginx, `log_format` and its variables; Apache, `mod_log_config`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.errors import DOCUMENTATION
from penstock.simulate.log.errors import LogError
from penstock.validation import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


# Our field names for the servers' variables.
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
    "request_time": "duration",
    "request_method": "method",
    "request_uri": "target",
    "time_iso8601": "time",
    "time_local": "time",
    "uri": "path",
}
_APACHE: Final = {
    "B": "bytes",
    "D": "duration",
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
# The time fields, most precise first.
_TIMES: Final = ("msec", "time_iso8601", "time_local", "time")
_REQUEST_PARTS: Final = {"request": ("method", "path", "target"), "target": ("path",)}

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
        before: The text before it.
        name: The name for messages.
        names: All names that select it.
        is_number: Whether it consists of digits, or is `-`.
    """

    before: str
    name: str
    names: frozenset[str]
    is_number: bool


class LineFormat(NamedTuple):
    """The format of a line.

    Attributes:
        name: The name for messages.
        fields: Its fields, in order.
        tail: The text after the last field.
        is_open: Whether a line may continue after a space.
    """

    name: str
    fields: tuple[Field, ...]
    tail: str
    is_open: bool = False

    @property
    def known(self) -> list[str]:
        """The names of the fields that can be selected."""
        names = {field.name for field in self.fields}
        return sorted(names.union(*(_REQUEST_PARTS.get(name, ()) for name in names)))

    def after(self, text: str) -> LineFormat:
        """Return the format of lines that begin with a text."""
        first, *others = self.fields
        fields = (first._replace(before=text + first.before), *others)
        return self._replace(name=f"{self.name}, after {text}", fields=fields)

    def time_field(self, wanted: str | None) -> Field:
        """Return the field of the time; None: the most precise one.

        Raises:
            LogError: The format has no such field.
        """
        for name in _TIMES if wanted is None else (wanted,):
            for field in self.fields:
                if name in field.names:
                    return field
        if wanted is not None:
            raise self._unknown("time", wanted)
        raise LogError(
            f"the format {self.name!r} has no time field; "
            "add $time_local, $time_iso8601, $msec or %t"
        )

    def find(self, option: str, wanted: str) -> tuple[Field, str]:
        """Return the field with a name, and the part of the request to use, if any.

        Raises:
            LogError: The format has no such field.
        """
        sources = ("request", "target")
        named = [(wanted, ""), *((source, wanted) for source in sources)]
        for name, part in named:
            for field in self.fields:
                if name in field.names and (not part or part in _REQUEST_PARTS[name]):
                    return field, part
        raise self._unknown(option, wanted)

    def _unknown(self, option: str, wanted: str) -> LogError:
        return LogError(
            f"{option} must be a field of the format {self.name}, found {wanted!r}; "
            f"{did_you_mean(wanted, self.known)}"
        )


def line_format(text: str) -> LineFormat:
    """Parse a format: a name in `FORMATS`, or a format string of nginx or Apache.

    The whole configuration directive is accepted too.

    Raises:
        LogError: The format has no fields, or no separator between two fields.

    >>> [field.name for field in line_format('$remote_addr [$time_local] $status').fields]
    ['address', 'time', 'status']
    """
    if text in FORMATS:
        return FORMATS[text]
    if match := _NGINX_DIRECTIVE.fullmatch(text):
        pieces = [a or b for a, b in _QUOTED.findall(match[1])]
        return _line_format(text, _nginx("".join(pieces) if pieces else match[1]))
    if match := _APACHE_DIRECTIVE.fullmatch(text):
        return _line_format(text, _apache(re.sub(r"\\(.)", r"\1", match[1])))
    if _NGINX_FIELD.search(text):
        return _line_format(text, _nginx(text))
    if "%" in text:
        return _line_format(text, _apache(text))
    raise LogError(
        f"format must be 'auto', a format name, or a format string of nginx ('$remote_addr …') or "
        f"Apache ('%h …'), found {text!r}; {did_you_mean(text, [*FORMATS, *_OTHERS])}"
    )


_OTHERS: Final = ("auto", "csv", "jsonl", "logfmt", "parquet", "w3c")


def _line_format(name: str, parts: Iterable[tuple[str, tuple[str, ...]]]) -> LineFormat:
    """Make a format from texts, each with the names of the field after it (none at the end)."""
    fields: list[Field] = []
    before = ""
    for text, names in parts:
        before += text
        if not names:
            continue
        if fields and not before:
            raise LogError(
                f"fields {fields[-1].name} and {names[0]} need a separator, found {name!r}"
            )
        is_number = names[0] in _NUMBERS
        fields.append(Field(before, names[0], frozenset(names), is_number))
        before = ""
    if not fields:
        raise LogError(f"a format needs at least a time field, found {name!r}")
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
# Source: AWS, access log entries of Application and Classic Load Balancers, and of S3.
_ELB: Final = (
    "$time_iso8601 $elb $remote_addr $upstream_addr $request_time $target_time $response_time "
    '$status $target_status $request_length $bytes_sent "$request" "$http_user_agent"'
)
_ALB: Final = f"$type {_ELB}"
_S3: Final = (
    "$owner $bucket [$time_local] $remote_addr $remote_user $request_id $operation $key "
    '"$request" $status $error $bytes_sent'
)
# Source: HAProxy configuration manual, HTTP log format.
_HAPROXY: Final = (
    '$remote_addr [$time_local] $frontend $backend $timers $status $bytes_sent $captured "$request"'
)
# Source: aiohttp, `AccessLogger.LOG_FORMAT`.
_AIOHTTP: Final = '%a %t "%r" %s %b "%{Referer}i" "%{User-Agent}i"'
# Source: Nginx Proxy Manager, its proxy and its standard format.
_NPM: Final = (
    '[$time_local] $statuses - $request_method $scheme $host "$request_uri" '
    "[Client $remote_addr] [Length $bytes_sent]"
)

# Source: Traefik, access logs in the common format.
_TRAEFIK: Final = (
    '$remote_addr $ident $remote_user [$time_local] "$request" $status $bytes_sent "$http_referer" '
    '"$http_user_agent" $requests "$router" "$server" $duration'
)

RECIPES: Final = (
    f"{DOCUMENTATION}/replay/#python-servers has formats for uvicorn, hypercorn, Granian, aiohttp, "
    "Daphne and waitress."
)
"""Where formats of other servers are found."""

FORMATS: Final = {
    name: _line_format(name, parts)._replace(is_open=True)
    # In the order in which they are tried: a line of one format also matches the next ones.
    for name, parts in {
        "vhost_combined": _apache(f"%v:%p {_COMBINED}"),
        "traefik": _nginx(_TRAEFIK),
        "main": _nginx(_MAIN),
        "combined": _apache(_COMBINED),
        "common": _apache(_COMMON),
        "alb": _nginx(_ALB),
        "elb": _nginx(_ELB),
        "s3": _nginx(_S3),
        "aiohttp": _apache(_AIOHTTP),
        "haproxy": _nginx(_HAPROXY),
        "npm": _nginx(_NPM),
    }.items()
}
"""Formats by name. Their lines may have more fields at the end."""
