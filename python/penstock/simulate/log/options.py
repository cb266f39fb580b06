"""The options of the core's parser."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from penstock._core import IPV6_PREFIX

if TYPE_CHECKING:
    from collections.abc import Sequence


class Options(NamedTuple):
    """The options of the core's parser.

    Attributes:
        slots: The fields to read, each with its slot.
        has_cost: Whether a field holds the cost.
        duration_unit: The unit of durations that do not state one, in nanoseconds; None if
            durations are not read.
        id_fields: The number of fields of an id.
        client: The field of the id with the client, by index; a line without it has no id.
        is_address: Whether the client must be an address.
        zone: The zone of times without one: `UTC`, `Europe/Berlin`, or an offset such as `+05:30`.
        window: How late a line may be, in nanoseconds; None for any time.
        ended: Whether the time of a line is the end of its request, not its start.
        start_ns: The first time of the events to keep.
        end_ns: The time before which they must be.
        ipv6_prefix: Leading bits of an IPv6 address that identify a client.
        is_json_wrapped: Whether a line is the field `log` of a JSON object.
        prefix_words: The number of words before a line.
        directive: The directive that names the fields of a W3C log; None for other logs.
        parts: The slots of requests of which only a part is used, each with the part.
        conditions: For each condition the slot of its field, whether no pattern may match, and the
            patterns.
    """

    slots: Sequence[tuple[str, int]] = ()
    has_cost: bool = False
    duration_unit: int | None = None
    id_fields: int = 0
    client: int | None = None
    is_address: bool = False
    zone: str = "UTC"
    window: int | None = None
    ended: bool = False
    start_ns: int = 0
    end_ns: int = 2**63 - 1
    ipv6_prefix: int = IPV6_PREFIX
    is_json_wrapped: bool = False
    prefix_words: int = 0
    directive: bytes | None = None
    parts: Sequence[tuple[int, str]] = ()
    conditions: Sequence[tuple[int, bool, Sequence[str]]] = ()
