"""What limits files mean: their fields, ids and texts, and the faults of whole files."""

from __future__ import annotations

from pathlib import Path

import pytest

import penstock
from penstock import Limit, Limits

DATA = Path(__file__).parents[1] / "data"
ONE = "burst: 1, count: 1, period: 1s"


def working(overrides: str) -> Limits:
    """Load the working defaults with overrides."""
    folder = DATA / "limits"
    return Limits.load(folder / "working_defaults.yaml", folder / overrides)


def test_working_defaults_have_the_expected_limits() -> None:
    limits = Limits.load(DATA / "limits/working_defaults.yaml")
    assert dict(limits) == {
        "Orders": Limit.token_bucket(burst=20, count=40, period="1m"),
        "Signups": Limit.token_bucket(burst=5, count=10, period="90m"),
        "Notes": Limit.leaky_bucket(size=30, drip_rate="500ms", drip_size=2),
        "Uploads": Limit.leaky_bucket(size=300, drip_rate="12s"),
        "Pages": Limit.fixed_window(count=1000, period="24h", anchor="aligned", phase="6h"),
        "Reports": Limit.fixed_window(count=10, period="1h", anchor="aligned", phase="per-key"),
        "Calls": Limit.fixed_rate_window(count=5, period=1, burst=2),
        "Health": Limit.unlimited(),
        "12 per day": Limit.token_bucket(burst=12, count=12, period="24h"),
    }


@pytest.mark.parametrize(
    ("short", "omitted"),
    [
        (ONE, "algorithm: token-bucket"),
        ("algorithm: leaky-bucket, size: 3", "drip_rate: 1s, drip_size: 1"),
        ("algorithm: fixed-window, count: 3, period: 1s", "anchor: first"),
        ("algorithm: fixed-window, count: 3, period: 1s, anchor: aligned", "phase: 0s"),
        ("algorithm: fixed-rate-window, count: 3, period: 1s", "burst: 0, anchor: first"),
    ],
)
def test_omitted_fields_have_their_default_values(short: str, omitted: str) -> None:
    assert Limits.parse(f"A: {{{short}}}") == Limits.parse(f"A: {{{short}, {omitted}}}")


@pytest.mark.parametrize(
    ("name", "id", "line"),
    [
        *(("Orders", id, 1) for id in ("13371338", "123", "0123", "7")),
        # What YAML reads as a number, a boolean, null or a date is an ordinary id.
        *(("Notes", id, 6) for id in ("1e5", "0x10", "true", "null", "12:30", "2026-01-01")),
        *(("Notes", id, 6) for id in (".5", "~")),
        ("Orders", "8", None),
        *(("Notes", id, None) for id in ("100000", "16", "0.5", "1")),
    ],
)
def test_ids_of_a_list_are_used_as_written(name: str, id: str, line: int | None) -> None:
    why = working("working_overrides_list.yaml").explain(name, id)
    assert why.rule == ("the default" if line is None else "an override for this id")
    assert line in (None, why.line)


def test_override_inherits_omitted_fields_from_its_default() -> None:
    limits = working("working_overrides_list.yaml")
    assert limits.resolve("Notes", "1e5") == Limit.leaky_bucket(size=60)
    assert limits.explain("Notes", "1e5").comment == "a partner"
    assert limits.explain("Notes", "0x10").comment is None
    assert limits.explain("Orders", "7").docs == "https://example.com/limits#orders"
    assert limits.resolve("Health", "crawler") == Limit.token_bucket(burst=1, count=1, period=1)
    elsewhere = limits.explain("Elsewhere", "WWW.example.com")
    assert (elsewhere.id, elsewhere.limit.max_cost) == ("www.example.com", 3)


@pytest.mark.parametrize(
    ("name", "id", "most", "line"),
    [
        ("Orders", "12", 200, 1),
        ("Signups", "2001:db8::1", 50, 2),
        ("Signups", "10.1.1.1", 60, 3),
        ("Notes", "a:b:c", 60, 4),
    ],
)
def test_key_of_an_override_splits_at_the_first_colon(
    name: str, id: str, most: int, line: int
) -> None:
    why = working("working_overrides_keyed.yaml").explain(name, id)
    assert (why.limit.max_cost, why.line) == (most, line)
    assert why.shadow == (name == "Signups")


@pytest.mark.parametrize(
    ("block", "description"),
    [
        (">\n    Two\n    lines", "Two lines\n"),
        (">-\n    Two\n    lines\n", "Two lines"),
        ("|\n    Two\n    lines", "Two\nlines\n"),
        ("|-\n    Two\n    lines", "Two\nlines"),
        ("Two\n    lines", "Two lines"),
        ("'it''s'", "it's"),
        (r'"a\tb\u00e9"', "a\tbé"),
    ],
)
def test_description_may_be_a_block_of_text(block: str, description: str) -> None:
    limits = Limits.parse(f"A:\n  burst: 1\n  count: 1\n  period: 1s\n  description: {block}")
    assert limits.explain("A", "ada").description == description


def test_equal_overrides_are_written_as_one_entry() -> None:
    rest = [
        "ids: [a]",
        "docs: 'https://example.com/b', ids: [b]",
        "description: of c, ids: [c]",
        "mode: shadow, ids: [d]",
        "ids: [e, {id: f, comment: why}]",
        "ids: ['7']",
    ]
    limits = Limits.parse("{}", "".join(f"- Orders: {{{ONE}, {one}}}\n" for one in rest))
    written = limits.overrides_to_yaml() or ""
    assert Limits.parse("{}", written) == limits
    assert written.count("- Orders:") == 5
    assert written.endswith('ids:\n      - "e"\n      - id: f\n        comment: why\n      - "7"\n')
    assert (Limits().to_yaml(), Limits().overrides_to_yaml()) == ("{}\n", None)


@pytest.mark.parametrize("overrides", [None, "[]", "{}"])
def test_empty_collection_has_no_limits(overrides: str | None) -> None:
    assert not Limits.parse("{}", overrides)


@pytest.mark.parametrize("text", ["", "\n", "# nothing\n", "---", "null", "~"])
def test_file_without_a_collection_is_an_error(text: str) -> None:
    for texts in ((text, None), ("{}", text)):
        with pytest.raises(penstock.ConfigError, match="the file is empty"):
            Limits.parse(*texts)


def test_faults_of_texts_name_a_placeholder() -> None:
    faults = [(f"A: {{{ONE.replace('1', '0')}}}", None), ("{}", "A:1: {burst: 0}")]
    for (defaults, overrides), file in zip(faults, ("<defaults>", "<overrides>"), strict=True):
        with pytest.raises(penstock.ConfigError, match=f"^{file}:1: A: "):
            Limits.parse(defaults, overrides)


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"A:\n  burst: 1 # gr\xf6\xdfe\n", ":2: a limits file must be UTF-8"),
        (b"A:\n  burst: 1\0\n", ":2: a limits file must not contain control characters"),
        (b"\xff\xfeA\0", ":1: a limits file must be UTF-8"),
        (b"A: \x1b[2J\n", ":1: a limits file must not contain control characters"),
        (b"A: 1/s\n#" + b"x" * ((16 << 20) - 7), ": a limits file must be at most 16777216 bytes"),
        # What is a text, with the mark and the line ends of Windows, or of the maximum size.
        (b"\xef\xbb\xbfA: 1/s\r\n", None),
        (b"A: 1/s\n#" + b"x" * ((16 << 20) - 8), None),
    ],
    ids=["latin1", "nul", "utf16", "escape", "too large", "windows", "largest"],
)
def test_file_must_be_a_text(tmp_path: Path, content: bytes, fault: str | None) -> None:
    file = tmp_path / "limits.yaml"
    file.write_bytes(content)
    if fault is None:
        assert list(Limits.load(file)) == ["A"]
        return
    with pytest.raises(penstock.ConfigError) as caught:
        Limits.load(file)
    assert str(caught.value).startswith(f"{file}{fault}")


def test_only_the_first_hundred_faults_are_reported() -> None:
    with pytest.raises(penstock.ConfigError, match=r"\nand 150 more$") as caught:
        Limits.parse("".join(f"L{number}: 1\n" for number in range(250)))
    assert len(caught.value.problems) == 100
    assert caught.value.problems[99].limit_name == "L99"


@pytest.mark.parametrize(
    "text",
    [
        "A: HUGE",
        "? HUGE\n: 1",
        "A: {? HUGE : 1}",
        "A: {algorithm: HUGE}",
        "A: {mode: HUGE, burst: 1, count: 1, period: 1s}",
        "A: {burst: HUGE, count: 1, period: HUGE, id: HUGE, docs: HUGE}",
        "A: {burst: 1HUGE, count: 1, period: 1s}",
    ],
)
def test_huge_value_is_not_echoed(text: str) -> None:
    huge = ("0" if "1HUGE" in text else "x") * 1_000_000
    with pytest.raises(penstock.ConfigError) as caught:
        Limits.parse(text.replace("HUGE", huge))
    assert len(str(caught.value)) < 4000


# The examples of the specification, unchanged.


@pytest.mark.parametrize(
    ("files", "name", "id", "numbers"),
    [
        ("1_1 1_2", "NewRegistrationsPerIPAddress", "10.0.0.1", (20, 20, 1)),
        ("1_1 1_2", "NewRegistrationsPerIPAddress", "10.0.0.2", (20, 40, 1)),
        ("1_1 1_2", "NewOrdersPerAccount", "1", (300, 300, 10_800)),
        ("1_1 1_2", "NewOrdersPerAccount", "12345678", (300, 600, 10_800)),
        ("1_1 1_3", "NewFoosPerIPAddress", "172.23.45.22", (20, 20, 1)),
        ("3_1 3_2", "NewRegistrationsPerIPAddress", "10.0.0.1", (20, 20, 1)),
        ("3_1 3_2", "NewRegistrationsPerIPAddress", "10.0.0.2", (20, 40, 1)),
        ("3_1 3_2", "NewRegistrationsPerIPAddress", "10.0.0.5", (20, 40, 1)),
        ("3_1 3_2", "NewOrdersPerAccount", "1", (300, 300, 10_800)),
        ("3_1 3_2", "NewOrdersPerAccount", "12345678", (300, 600, 10_800)),
        ("3_1 3_2", "NewOrdersPerAccount", "87654321", (300, 600, 10_800)),
        ("1_1 3_3", "NewFoosPerIPAddress", "172.23.45.22", (20, 20, 1)),
    ],
)
def test_example_of_the_specification_loads(
    files: str, name: str, id: str, numbers: tuple[int, ...]
) -> None:
    defaults, overrides = files.split()
    folder = DATA / "spec_examples"
    limits = Limits.load(
        folder / f"{defaults}_defaults.yaml", folder / f"{overrides}_overrides.yaml"
    )
    limit = limits.resolve(name, id)
    assert (limit.burst, limit.count, limit.period) == numbers


SET = "36b9d2294255745d0f491b3f04f6490de45cc7241f650ba58c3e4e61a2344efc"
SET_WITH_ADDRESS = "cacb272406c7e247e148af01e728724c8d8dfc3e4fc0df4b86edf306987db3ea"


@pytest.mark.parametrize(
    ("id_format", "id", "canonical"),
    [
        ("ipAddress", "10.0.0.1", "10.0.0.1"),
        ("ipAddress", "2001:0db8:0000:0000:0000:ff00:0042:8329", "2001:db8::ff00:42:8329"),
        ("ipv6RangeCIDR", "2001:0db8:0000::/48", "2001:db8::/48"),
        ("regId", "12345678", "12345678"),
        ("regId:domain", "12345678:example.com", "12345678:example.com"),
        ("identValue", "www.example.com", "www.example.com"),
        ("identValue", "192.168.1.1", "192.168.1.1"),
        ("identValue", "2001:db8:eeee::1", "2001:db8:eeee::1"),
        ("domainOrCIDR", "example.com", "example.com"),
        ("domainOrCIDR", "192.168.1.0", "192.168.1.0/32"),
        ("domainOrCIDR", "2001:db8:eeee:eeee::", "2001:db8:eeee:eeee::/64"),
        ("fqdnSet", "example.com,example.org", SET),
        ("fqdnSet", "192.168.1.1,example.com,example.org", SET_WITH_ADDRESS),
        ("regId:fqdnSet", "12345678:example.com,example.org", f"12345678:{SET}"),
    ],
)
def test_example_id_of_the_specification_is_valid(id_format: str, id: str, canonical: str) -> None:
    limits = Limits.parse("{}", f"'Limit:{id}': {{{ONE}, id: '{id_format}'}}")
    why = limits.explain("Limit", id)
    assert (why.id, why.limit.max_cost) == (canonical, 1)
