"""Limits by name: from files, texts and dicts; resolving, writing and errors."""

from __future__ import annotations

import collections
import copy
import enum
import ipaddress
import os
import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import boulder
import pytest
import yaml

import penstock
from penstock import Limit, Limits

DATA = Path(__file__).parents[1] / "data"
BUSTED = sorted(path.name for path in (DATA / "limits").glob("busted_*.yaml"))
OVERRIDES = sorted(path.name for path in (DATA / "limits").glob("working_overrides_*.yaml"))

TOKEN = Limit.token_bucket(burst=4, count=2, period=1)
TEXT = "Orders: {burst: 4, count: 2, period: 1s}"


class Names(enum.IntEnum):
    """Names with numbers, some with an id format."""

    id_format: str

    def __new__(cls, number: int, id_format: str = "any") -> Self:
        member = int.__new__(cls, number)
        member._value_ = number
        member.id_format = id_format
        return member

    Orders = 3, "regId"
    Mails = 4


class LimitName(enum.IntEnum):
    """The class that the busted files name."""

    NewOrdersPerAccount = 3

    @property
    def id_format(self) -> str:
        return "regId"


@pytest.fixture
def working() -> Limits:
    """The limits of the working files."""
    folder = DATA / "limits"
    return Limits.load(folder / "working_defaults.yaml", folder / "working_overrides_list.yaml")


@pytest.mark.parametrize("name", BUSTED)
def test_busted_file_is_refused_with_the_words_at_its_head(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # From inside the folder, so that messages name the file alone.
    monkeypatch.chdir(DATA / "limits")
    lines = Path(name).read_text(encoding="utf-8").splitlines()
    head = [line.removeprefix("# ") for line in lines if line.startswith("# ")]
    is_overrides = name.startswith("busted_overrides_")
    defaults, overrides = ("working_defaults.yaml", name) if is_overrides else (name, None)
    names = LimitName if name.startswith("busted_named_") else None
    with pytest.raises(penstock.ConfigError) as caught:
        Limits.load(defaults, overrides, names)
    assert head
    assert str(caught.value).splitlines() == head
    assert "\n".join(caught.value.problems).splitlines() == head
    assert caught.value.file == name
    line = head[0].removeprefix(name).partition(": ")[0].removeprefix(":")
    assert caught.value.line == (int(line) if line else None)


def test_all_files_exist() -> None:
    assert len(BUSTED) >= 49
    assert len(OVERRIDES) >= 2


@pytest.mark.parametrize("overrides", OVERRIDES)
def test_written_limits_load_as_equal_limits(overrides: str) -> None:
    folder = DATA / "limits"
    limits = Limits.load(folder / "working_defaults.yaml", folder / overrides)
    written = limits.to_yaml(), limits.overrides_to_yaml()
    again = Limits.parse(*written)
    assert again == limits
    assert (again.to_yaml(), again.overrides_to_yaml()) == written
    # Other readers of YAML see the same names and numbers.
    seen = yaml.safe_load(written[0])
    assert list(seen) == [name for name in limits if limits.default(name) is not None]
    assert (seen["Orders"]["burst"], seen["Orders"]["number"]) == (20, 6)
    assert seen["Pages"]["phase"] == "6h"


def test_limits_survive_pickle_and_copy(working: Limits) -> None:
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(working, protocol)) == working  # noqa: S301  made just now
    assert copy.copy(working) == working
    assert copy.deepcopy(working) == working
    assert pickle.loads(pickle.dumps(Limits())) == Limits()  # noqa: S301  made just now


def test_limits_are_equal_if_they_decide_and_read_alike() -> None:
    assert Limits({"Orders": TOKEN}) == Limits.parse(TEXT)
    assert Limits({"Orders": TOKEN}) != Limits({"Order": TOKEN})
    assert Limits.parse(TEXT) != Limits.parse(
        TEXT, "- Orders: {burst: 5, ids: [a], count: 2, period: 1s}"
    )
    assert Limits.parse(TEXT) != Limits.parse(
        "Orders: {burst: 4, count: 2, period: 1s, mode: shadow}"
    )
    assert Limits() != {}
    with pytest.raises(TypeError, match="unhashable"):
        hash(Limits())


def test_limits_are_walked_in_the_order_of_the_file(working: Limits) -> None:
    names = ["Orders", "Signups", "Notes", "Uploads", "Pages", "Reports", "Calls", "Health"]
    assert list(working)[:8] == names
    assert list(working)[8:] == ["12 per day", "Elsewhere"]
    assert len(working) == 10
    assert all(name in working for name in names)
    assert "Nothing" not in working
    other: Any = 6
    assert other not in working
    assert "\udc80" not in working
    assert working
    assert not Limits()
    assert "10 limits" in repr(working) or "Orders" in repr(working)


def test_limit_with_only_overrides_has_no_default(working: Limits) -> None:
    assert working.default("Orders") == Limit.token_bucket(burst=20, count=40, period="1m")
    assert working.default("Elsewhere") is None
    assert working.default("Health") == Limit.unlimited()
    assert working.resolve("Elsewhere", "example.net") == Limit.unlimited()
    with pytest.raises(penstock.UnknownLimit):
        working.default("Nothing")


@pytest.mark.parametrize(
    ("name", "id", "burst", "rule", "line"),
    [
        ("Orders", 7, 200, "an override for this id", 1),
        ("Orders", "0123", 200, "an override for this id", 1),
        ("Orders", b"000123", 200, "an override for this id", 1),
        ("Orders", 8, 20, "the default", 2),
        ("Signups", "10.9.9.9", 50, "an override for the network 10.0.0.0/8", 18),
        ("Signups", ipaddress.ip_address("10.1.2.3"), 50, "an override for this id", 18),
        ("Signups", "2001:DB8:0::9", 50, "an override for the network 2001:db8::/32", 18),
        ("Signups", ipaddress.ip_address("11.0.0.1"), 5, "the default", 10),
    ],
)
def test_explanation_names_the_deciding_entry(  # noqa: PLR0917  one row of the table
    working: Limits, name: str, id: Any, burst: int, rule: str, line: int
) -> None:
    why = working.explain(name, id)
    assert (why.limit.burst, why.rule, why.line) == (burst, rule, line)
    assert working.resolve(name, id) == why.limit
    file = "working_defaults.yaml" if rule == "the default" else "working_overrides_list.yaml"
    assert why.file is not None
    assert Path(why.file).name == file
    assert repr(why).startswith(f"<Explanation {why.bucket_key}: Limit.")


def test_explanation_has_descriptions_and_comments(working: Limits) -> None:
    orders, office = working.explain("Orders", 7), working.explain("Signups", "10.1.2.3")
    assert (orders.name, orders.id, orders.bucket_key) == ("Orders", "7", "6:7")
    assert orders.description == "New orders of one account"
    assert orders.docs == "https://example.com/limits#orders"
    assert (office.bucket_key, office.description) == (
        "Signups:10.1.2.3",
        "Sign-ups from the office",
    )
    assert office.docs is None
    assert not office.shadow
    assert working.explain("Signups", "192.0.2.1").shadow
    missing = working.explain("Elsewhere", "example.net")
    assert (missing.rule, missing.file, missing.line) == ("no default: unlimited", None, None)


@pytest.mark.parametrize("method", ["resolve", "explain"])
def test_unknown_name_and_foreign_id_are_errors(working: Limits, method: str) -> None:
    ask = getattr(working, method)
    with pytest.raises(penstock.UnknownLimit, match=r"'Order'.*Orders"):
        ask("Order", 7)
    with pytest.raises(penstock.InvalidId, match=r'^Orders: .* found "x"'):
        ask("Orders", "x")
    for wrong in (True, 1.5, None, ["7"], object()):
        with pytest.raises(TypeError, match="id must be a str, int, bytes"):
            ask("Orders", wrong)
    with pytest.raises(TypeError):
        ask(6, "7")


@pytest.mark.parametrize(
    "mapping",
    [dict, collections.OrderedDict, MappingProxyType, collections.ChainMap],
    ids=lambda mapping: mapping.__name__,
)
def test_any_mapping_of_names_is_accepted_as_limits(mapping: Any) -> None:
    made = Limits(mapping({"Orders": TOKEN, "Mails": "10/hour"}))
    assert set(made) == {"Orders", "Mails"}
    assert made.default("Orders") == TOKEN
    assert made.default("Mails") == Limit.parse("10/hour")
    assert Limits(made) == made


@pytest.mark.parametrize(
    ("limits", "problem", "message"),
    [
        ({"7": TOKEN}, penstock.ConfigError, "all digits"),
        ({"<<": TOKEN}, penstock.ConfigError, "<<"),
        # An odd name is in quotes.
        ({"a:": TOKEN}, penstock.ConfigError, '^"a:": '),
        ({"": TOKEN}, penstock.ConfigError, '^"": '),
        ({"Orders": "5/moth"}, penstock.LimitError, "Orders: expected second"),
        ({"Orders": 5}, TypeError, "Orders must be a Limit or a rate string"),
        ({"Orders": None}, TypeError, "Orders must be a Limit or a rate string"),
        ({5: TOKEN}, TypeError, "name must be a str, found int 5"),
        ([("Orders", TOKEN)], TypeError, "limits must be a Limits or a dict"),
        (TOKEN, TypeError, "limits must be a Limits or a dict"),
    ],
    ids=repr,
)
def test_invalid_mapping_of_limits_is_refused(
    limits: Any, problem: type[Exception], message: str
) -> None:
    with pytest.raises(problem, match=message):
        Limits(limits)
    with pytest.raises(problem, match=message):
        penstock.Limiter(limits)


def test_all_problems_of_a_dict_are_reported_at_once() -> None:
    with pytest.raises(penstock.ConfigError) as caught:
        Limits({"7": TOKEN, "good": TOKEN, "a:b": TOKEN})
    assert [problem.partition(":")[0] for problem in caught.value.problems] == ["7", '"a']
    assert caught.value.limit_name == "7"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nowhere.yaml", r"^nowhere\.yaml: cannot be read: "),
        (".", r"^\.: cannot be read: "),
        ("a\x00b", "cannot be read"),
        ("\udc80", "cannot be read"),
    ],
)
def test_path_that_cannot_be_read_is_an_error(
    path: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(penstock.ConfigError, match=message) as caught:
        Limits.load(path)
    assert caught.value.line is None
    Path("limits.yaml").write_text(TEXT, encoding="utf-8")
    with pytest.raises(penstock.ConfigError, match=message):
        Limits.load("limits.yaml", overrides=path)


@pytest.mark.parametrize("path", [5, b"limits.yaml", None, 1.5, ["limits.yaml"]], ids=repr)
def test_only_a_path_is_loaded(path: Any) -> None:
    with pytest.raises(TypeError, match=r"^defaults"):
        Limits.load(path)


def test_file_and_text_read_alike(tmp_path: Path) -> None:
    file = tmp_path / "limits.yaml"
    file.write_text(TEXT, encoding="utf-8")
    assert Limits.load(file) == Limits.load(str(file)) == Limits.parse(TEXT)
    assert Limits.load(defaults=file, overrides=None, names=None) == Limits.parse(defaults=TEXT)
    assert Limits.load(file).explain("Orders", "a").file == str(file)
    assert Limits.parse(TEXT).explain("Orders", "a").file == "<defaults>"


@pytest.mark.parametrize("text", [TEXT.encode(), 5, None, Path("limits.yaml")], ids=repr)
def test_only_a_text_is_parsed(text: Any) -> None:
    with pytest.raises(TypeError):
        Limits.parse(text)


def test_names_of_an_enumeration_give_numbers_and_formats() -> None:
    limits = Limits.parse("Orders: {burst: 4, count: 2, period: 1s}", names=Names)
    assert list(limits) == ["Orders", "Mails"]
    assert limits.explain("Orders", "0012").bucket_key == "3:12"
    # Known, with no default: unlimited.
    assert limits.explain("Mails", "ada").bucket_key == "4:ada"
    assert limits.resolve("Mails", "ada") == Limit.unlimited()
    with pytest.raises(penstock.InvalidId):
        limits.explain("Orders", "ada")
    with pytest.raises(penstock.ConfigError, match="Names"):
        Limits.parse("Order: {burst: 4, count: 2, period: 1s}", names=Names)
    with pytest.raises(penstock.ConfigError, match="found 5"):
        Limits.parse("Orders: {burst: 4, count: 2, period: 1s, number: 5}", names=Names)
    with pytest.raises(penstock.ConfigError, match="found any"):
        Limits.parse("Orders: {burst: 4, count: 2, period: 1s, id: any}", names=Names)
    # With `any`, the file decides.
    mails = Limits.parse("Mails: {burst: 4, count: 2, period: 1s, id: ipAddress}", names=Names)
    assert mails.explain("Mails", "::ffff:192.0.2.7").bucket_key == "4:192.0.2.7"
    # Written out and read again without the class, it is the same.
    assert "id_format:" in mails.to_yaml()
    again = Limits.parse(limits.to_yaml())
    assert again.explain("Orders", 12).bucket_key == "3:12"


@pytest.mark.parametrize(
    "names",
    [
        int,
        "Names",
        5,
        Names.Orders,
        {"Orders": 3},
        enum.Enum("Names", {"Orders": 3}),
        enum.IntFlag("Names", {"Orders": 4}),
        enum.StrEnum("Texts", {"Orders": "3"}),
    ],
    ids=repr,
)
def test_names_must_be_a_class_of_int_enum(names: Any) -> None:
    with pytest.raises(TypeError, match=r"^names"):
        Limits.parse("{}", names=names)


@pytest.mark.parametrize(
    ("number", "good"), [(-1, False), (0, True), (2**64 - 1, True), (2**64, False)]
)
def test_number_of_a_name_is_of_64_bits(number: int, good: bool) -> None:
    names = enum.IntEnum("names", {"Orders": number})
    if good:
        assert Limits.parse("{}", names=names).explain("Orders", "a").bucket_key == f"{number}:a"
    else:
        message = rf"names: the number of Orders must be .*, found {number}"
        with pytest.raises(penstock.ConfigError, match=message):
            Limits.parse("{}", names=names)


def test_formats_of_names_are_checked() -> None:
    names = enum.IntEnum("names", {"Orders": 1})
    names["Orders"].id_format = "account"  # type: ignore[attr-defined]
    with pytest.raises(penstock.ConfigError, match=r"^names.*Orders"):
        Limits.parse("{}", names=names)


def test_preset_has_the_nine_names_and_their_numbers() -> None:
    assert [name.value for name in boulder.LimitName] == list(range(1, 10))
    limits = Limits.parse("{}", names=boulder.LimitName)
    assert limits.explain("NewOrdersPerAccount", 12345678).bucket_key == "3:12345678"
    assert limits.explain("NewRegistrationsPerIPv6Range", "2001:DB8::1").id == "2001:db8::/48"


def test_limits_are_a_mapping(working: Limits) -> None:
    assert isinstance(working, Mapping)
    assert dict(working) == {name: working[name] for name in working}
    assert [*working.keys()] == list(working)
    assert list(working.values()) == [limit for _, limit in working.items()]
    assert working["Elsewhere"] == Limit.unlimited()
    assert (working.get("Nothing"), working.get("Nothing", 5)) == (None, 5)
    with pytest.raises(penstock.UnknownLimit):
        working["Nothing"]


def test_union_of_limits_keeps_overrides_and_takes_the_later_of_one_name() -> None:
    earlier = Limits.parse(
        "A: {burst: 1, count: 1, period: 1s}\nB: {burst: 2, count: 2, period: 1s, number: 7}",
        "B:x: {burst: 5, count: 5, period: 1s}",
    )
    union = earlier | {"A": "3/second", "C": "4/second"}
    assert [union[name].burst for name in union] == [3, 2, 4]
    assert union.resolve("B", "x").burst == 5
    assert ({"A": "3/second"} | earlier)["A"].burst == 1
    with pytest.raises(penstock.ConfigError) as caught:
        earlier | Limits.parse("D: {burst: 1, count: 1, period: 1s, number: 7}")
    assert caught.value.limit_name == "D"
    wrong: Any = 6
    with pytest.raises(TypeError):
        earlier | wrong


LIMITS_OF_ROWS = """
Orders: {burst: 4, count: 10, period: 1m, description: orders of a client}
Searches: {algorithm: leaky-bucket, size: 3, mode: shadow}
PerAddress: {burst: 1, count: 1, period: 1s, id: ipAddress}
"""
OVERRIDE_FOR_EVE = "- Orders: {burst: 9, count: 1, period: 1s, ids: [eve]}"


def test_rows_become_overrides_and_bad_rows_are_left_out() -> None:
    defaults = Limits.parse(LIMITS_OF_ROWS, OVERRIDE_FOR_EVE)
    rows: list[Any] = [
        ("Orders", "ada", "100/minute", "asked for in May"),
        ("Mails", "ada", "1/s"),
        None,
        ("PerAddress", "10.0.0.0/8", Limit.unlimited()),
        ("PerAddress", "ada", "1/s"),
        ("Orders", "ada", "200/minute"),
        ("Searches", 7, {"size": 9, "mode": "enforce"}),
        ("Searches", "grace", {"algorithm": "fixed-window", "count": 2, "period": "1h"}),
        ("Orders", "bob", "5/moth"),
        ("Orders", "bob", {"burst": 5}),
        ("Orders", "bob"),
        5,
    ]
    limits, problems = defaults.with_overrides(rows)
    assert [index for index, _ in problems] == [1, 4, 5, 8, 9, 10, 11]
    assert not any("\n" in why for _, why in problems)
    assert limits.resolve("Orders", "ada").burst == 100
    assert limits.resolve("Orders", "eve").burst == 4
    assert limits.resolve("PerAddress", "10.9.8.7") == Limit.unlimited()
    why = limits.explain("Searches", 7)
    assert (why.limit, why.shadow) == (Limit.leaky_bucket(size=9), False)
    assert (why.file, why.line) == ("<rows>", 7)
    why = limits.explain("Searches", "grace")
    assert (why.limit, why.shadow) == (Limit.fixed_window(count=2, period="1h"), True)
    assert limits.explain("Orders", "ada").description == "orders of a client"
    assert Limits.parse(limits.to_yaml(), limits.overrides_to_yaml()) == limits


def test_error_of_the_rows_themselves_is_raised() -> None:
    def rows() -> Iterator[tuple[object, ...]]:
        yield "Orders", "ada", "1/s"
        raise OSError("the database is away")

    with pytest.raises(OSError, match="database"):
        Limits.parse(LIMITS_OF_ROWS).with_overrides(rows())
    with pytest.raises(TypeError):
        Limits.parse(LIMITS_OF_ROWS).with_overrides(5)  # type: ignore[arg-type]


def test_overrides_are_loaded_on_top_of_limits(tmp_path: Path) -> None:
    overrides = tmp_path / "overrides.yaml"
    overrides.write_text("- Searches: {size: 9, ids: [ada]}")
    defaults = Limits.parse(LIMITS_OF_ROWS, OVERRIDE_FOR_EVE)
    limits = Limits.load(defaults, overrides)
    assert limits.resolve("Searches", "ada") == Limit.leaky_bucket(size=9)
    assert limits.resolve("Orders", "eve").burst == 4
    assert Limits.load(defaults) == Limits.parse(LIMITS_OF_ROWS)
    with pytest.raises(TypeError):
        Limits.load(defaults, overrides, names=enum.IntEnum)


def test_limits_without_one() -> None:
    limits = Limits.parse(LIMITS_OF_ROWS)
    assert list(limits.without("Searches")) == ["Orders", "PerAddress"]
    with pytest.raises(penstock.UnknownLimit):
        limits.without("Mails")


def test_limits_files_accept_limits_as_texts() -> None:
    limits = Limits.parse(
        'Orders: 100/minute, burst 20\nMails: "5 per hour"\n'
        "Searches: {algorithm: leaky-bucket, size: 3, mode: shadow}",
        "Orders:ada: 7/second\nSearches:ada: 9/second",
    )
    assert limits.resolve("Orders", "eve") == Limit.parse("100/minute, burst 20")
    assert limits.resolve("Mails", "eve") == Limit.parse("5 per hour")
    assert limits.resolve("Orders", "ada") == Limit.parse("7/second")
    why = limits.explain("Searches", "ada")
    assert (why.limit, why.shadow, why.line) == (Limit.parse("9/second"), True, 2)
    assert Limits.parse(limits.to_yaml(), limits.overrides_to_yaml()) == limits


@pytest.mark.parametrize(
    ("defaults", "overrides"),
    [
        ("Orders: 100/moth", None),
        ("Orders: 100/minute extra", None),
        ("Orders: 100", None),
        ("Orders: 100/minute", "- Orders: 200/minute"),
    ],
)
def test_invalid_text_of_a_limit_is_refused(defaults: str, overrides: str | None) -> None:
    with pytest.raises(penstock.ConfigError) as caught:
        Limits.parse(defaults, overrides)
    assert (caught.value.limit_name, caught.value.line) == ("Orders", 1)
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes are of Unix")
def test_named_pipe_is_refused_rather_than_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "limits.yaml"
    os.mkfifo(pipe)
    with pytest.raises(penstock.ConfigError) as caught:
        Limits.load(pipe)
    assert caught.value.file == str(pipe)


def test_message_shows_the_start_of_a_long_name() -> None:
    with pytest.raises(penstock.ConfigError) as caught:
        Limits.parse(f'? "{"x" * 100_000}"\n: {{burst: 0, count: 1, period: 1s}}')
    assert len(str(caught.value)) < 500
    assert caught.value.limit_name == "x" * 100_000


def test_name_that_utf8_cannot_encode_is_unknown() -> None:
    limits = Limits({"Orders": "5/second"})
    limiter = penstock.Limiter(limits)
    verbs = ("spend", "check", "refund", "reserve", "acquire", "reset")
    calls = [getattr(limiter, verb) for verb in verbs]
    for call in (limits.resolve, limits.explain, *calls):
        with pytest.raises(penstock.UnknownLimit):
            call("\ud800", "ada")
    with pytest.raises(penstock.UnknownLimit):
        limits.default("\ud800")


def test_explanation_can_be_pickled(working: Limits) -> None:
    for name, id in (("Uploads", "ada"), ("Signups", "192.0.2.1")):
        why = working.explain(name, id)
        again = pickle.loads(pickle.dumps(why))  # noqa: S301  its own
        fields = [field for field in dir(why) if not field.startswith("_")]
        assert len(fields) >= 10
        assert [getattr(again, field) for field in fields] == [getattr(why, f) for f in fields]


def test_tiers_are_limits_that_share_the_fields_beside_them() -> None:
    limits = penstock.Limits.parse(
        """
Orders:
  id: ipAddress
  mode: shadow
  description: orders
  tiers:
    free: 100/hour
    pro: {count: 9, burst: 3, period: 1s, description: large orders, mode: enforce}
""",
        overrides="- Orders_pro: {count: 9, burst: 8, period: 1s, ids: [192.0.2.7]}",
    )
    assert list(limits) == ["Orders_free", "Orders_pro"]
    free = limits.explain("Orders_free", "192.0.2.7")
    assert (free.limit.burst, free.shadow, free.description) == (100, True, "orders")
    pro = limits.explain("Orders_pro", "192.0.2.7")
    assert (pro.limit.burst, pro.shadow, pro.description) == (8, False, "large orders")
    with pytest.raises(penstock.InvalidId):
        limits.resolve("Orders_free", "ada")
    assert penstock.Limits.parse(limits.to_yaml(), limits.overrides_to_yaml()) == limits


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("Orders: {tiers: 5}", 1),
        ("Orders: {tiers: {free: 5}}", 1),
        ("Orders:\n  burst: 5\n  tiers: {free: 5/hour}", 2),
        ("Orders:\n  tiers: {free: 5/hour}\n  tiers: {pro: 5/hour}", 3),
        ("Orders:\n  tiers: {free: 5/hour}\nOrders_free: 5/hour", 3),
        ("Orders:\n  tiers:\n    pro: {tiers: {one: 5/hour}}", 3),
        ("Orders:\n  tiers:\n    a:b: 5/hour", 3),
    ],
)
def test_fault_of_a_tier_names_its_line(text: str, line: int) -> None:
    with pytest.raises(penstock.ConfigError) as caught:
        penstock.Limits.parse(text)
    assert caught.value.line == line


@pytest.mark.parametrize(
    "overrides",
    [
        "- Orders: {burst: 9, count: 9, period: 1s, ids: [acme]}",
        "Orders:acme: {burst: 9, count: 9, period: 1s}",
    ],
)
def test_override_of_a_limit_with_tiers_names_one(overrides: str) -> None:
    # It would be a limit of its own, which no route uses.
    with pytest.raises(penstock.ConfigError) as caught:
        penstock.Limits.parse("Orders: {tiers: {free: 5/hour, pro: 9/hour}}", overrides)
    assert str(caught.value) == (
        "<overrides>:1: Orders: the limit has tiers; an override names one of them, as in "
        "Orders_free"
    )


def test_limiter_loads_a_file(tmp_path: Path) -> None:
    file = tmp_path / "limits.yaml"
    file.write_text("Orders: 5/minute\n")
    for path in (file, str(file)):
        limiter = penstock.Limiter(path)
        assert limiter.limits["Orders"].burst == 5
        file.write_text("Orders: 6/minute\n")
        limiter.reload(path)
        assert limiter.limits["Orders"].burst == 6
        assert penstock.AsyncLimiter(path).limits == limiter.limits
        file.write_text("Orders: 5/minute\n")
    with pytest.raises(penstock.ConfigError, match=r"nothing\.yaml: cannot be read"):
        penstock.Limiter(tmp_path / "nothing.yaml")
    with pytest.raises(TypeError, match="limits must be a Limits or a dict"):
        penstock.Limits(str(file))  # type: ignore[arg-type]
