"""Formats of access logs, in the syntax of the servers' configuration.

Source: nginx, `log_format` and its variables; Apache, `mod_log_config`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock._core import LogParser
from penstock._validation import did_you_mean
from penstock.errors import DOCUMENTATION
from penstock.simulate.log.report import LogError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from penstock.simulate.log.options import Options

# The names of Apache's fields.
_APACHE: Final = {
    "B": "bytes",
    "D": "duration_us",
    "O": "bytes",
    "T": "duration_s",
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
_NUMBERS: Final = {"body_bytes_sent", "bytes", "bytes_sent", "port", "status"}
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
        names: The names that select it; the first is used in messages.
        kind: `number` for digits or `-`, `text`, or `cell` for text that may be in quotes.
    """

    before: str
    names: tuple[str, ...]
    kind: str = "text"


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
    tail: str = ""
    is_open: bool = False

    @property
    def known(self) -> list[str]:
        """The names of the fields that can be selected."""
        return [name for field in self.fields for name in field.names]

    def parser(self, options: Options) -> LogParser:
        """Make the parser of these lines."""
        return LogParser.of_lines(self.fields, self.tail, self.is_open, options)


def line_format(text: str) -> LineFormat:
    """Parse a format: a name in `FORMATS`, or a format string of nginx or Apache.

    The whole configuration directive is accepted too.

    Raises:
        LogError: The format has no fields, or no separator between two fields.

    >>> line_format('$remote_addr [$time_local] $status').known
    ['remote_addr', 'time_local', 'status']
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


_OTHERS: Final = ("auto", "jsonl", "w3c")


def _line_format(name: str, parts: Iterable[tuple[str, tuple[str, ...]]]) -> LineFormat:
    """Make a format from the text before each field and its names, which the end does not have."""
    fields: list[Field] = []
    before = ""
    for text, names in parts:
        before += text
        if not names:
            continue
        if fields and not before:
            raise LogError(
                f"fields {fields[-1].names[0]} and {names[0]} need a separator, found {name!r}"
            )
        fields.append(Field(before, names, "number" if names[0] in _NUMBERS else "text"))
        before = ""
    if not fields:
        raise LogError(f"a format needs at least a time field, found {name!r}")
    return LineFormat(name, tuple(fields), before)


def _nginx(text: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    end = 0
    for match in _NGINX_FIELD.finditer(text):
        yield text[end : match.start()], (match[1] or match[2],)
        end = match.end()
    yield text[end:], ()


def _apache(text: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    end = 0
    for match in _APACHE_FIELD.finditer(text):
        before, end = text[end : match.start()], match.end()
        letter, detail = match["letter"], match["detail"] or ""
        if letter == "%":
            yield f"{before}%", ()
        elif letter == "t" and not detail:
            yield f"{before}[", ("time", "t")
            yield "]", ()
        elif letter == "i" and detail:
            yield before, (f"http_{detail.lower().replace('-', '_')}", detail)
        elif letter == "T" and detail:
            yield before, (f"duration_{detail}", f"{detail}T")
        else:
            yield before, (_APACHE.get(letter, letter), f"{detail}{letter}")
    yield text[end:], ()


_COMMON: Final = '%h %l %u %t "%r" %>s %b'
_COMBINED: Final = f'{_COMMON} "%{{Referer}}i" "%{{User-Agent}}i"'
_MAIN: Final = (
    '$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent '
    '"$http_referer" "$http_user_agent"'
)
# Source: NGINX Ingress Controller, its default log format.
_INGRESS: Final = f"{_MAIN} $request_length $request_time [$upstream] [$other]"
# Source: AWS, access log entries of Application and Classic Load Balancers, and of S3.
_ELB: Final = (
    "$time_iso8601 $elb $remote_addr $upstream_addr $request_processing_time "
    "$target_processing_time $response_processing_time "
    '$status $target_status $request_length $bytes_sent "$request" "$http_user_agent"'
)
_ALB: Final = f"$type {_ELB}"
_S3: Final = (
    "$owner $bucket [$time_local] $remote_addr $remote_user $request_id $operation $key "
    '"$request" $status $error $bytes_sent $object_size $total_time_ms'
)
# Source: HAProxy configuration manual, HTTP log format. The last timer is the whole request.
_HAPROXY: Final = (
    "$remote_addr [$time_local] $frontend $backend $tr/$tw/$tc/$tt/$duration_ms $status "
    '$bytes_sent $captured "$request"'
)
# Source: Traefik, access logs in the common format.
_TRAEFIK: Final = (
    '$remote_addr $ident $remote_user [$time_local] "$request" $status $bytes_sent "$http_referer" '
    '"$http_user_agent" $requests "$router" "$server" $duration'
)

RECIPES: Final = (
    f"{DOCUMENTATION}/logs/#python-servers has formats for uvicorn, hypercorn, Granian, aiohttp, "
    "Daphne and waitress."
)
"""Where formats of other servers are found."""

FORMATS: Final = {
    name: _line_format(name, parts)._replace(is_open=True)
    # In the order in which they are tried: a line of one format also matches the next ones.
    for name, parts in {
        "vhost_combined": _apache(f"%v:%p {_COMBINED}"),
        "traefik": _nginx(_TRAEFIK),
        "ingress": _nginx(_INGRESS),
        "main": _nginx(f'{_MAIN} "$http_x_forwarded_for"'),
        "combined": _apache(_COMBINED),
        "common": _apache(_COMMON),
        "alb": _nginx(_ALB),
        "elb": _nginx(_ELB),
        "s3": _nginx(_S3),
        "haproxy": _nginx(_HAPROXY),
    }.items()
}
"""Formats by name. Their lines may have more fields at the end."""
