"""Limits that a request chooses: by a callable, or by its tier."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from penstock._core import Limit
from penstock.errors import ConfigError
from penstock.locks import fork_safe
from penstock.validation import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from penstock._core import Limiter
    from penstock.web.compiled_limit import CompiledLimit
    from penstock.web.request import Request
    from penstock.web.rule import Rule

_Compiler: TypeAlias = "Callable[[str | Limit, str | None], CompiledLimit]"

# Every different text that a callable returns stays a limit of the limiter.
_MAX_LIMITS: Final = 1000


class PerRequestLimit:
    """Stands for the limit of a rule that each request chooses.

    Args:
        rule: The rule.
        scope: The name of the rule's scope.
        base: The name of the limit whose tiers are in the limits file; `None` for other choices.
        compiler: Compiles a limit of the rule, under a name if it has none of its own.
        limiter: The limiter whose file has the tiers.

    Attributes:
        name: The name of the scope, or the name of the limit in the file.
        is_plain: `False`: the request has to be read.
        holds: `False`: whether the limit takes slots is known when it is chosen.
    """

    is_plain: Final = False
    holds: Final = False

    def __init__(
        self, rule: Rule, scope: str, base: str | None, compiler: _Compiler, limiter: Limiter
    ) -> None:
        self.rule: Final = rule
        self.name: Final = scope if base is None else base
        self.is_shadow: Final = rule.mode == "shadow"
        self._base: Final = base
        self._compile: Final = compiler
        self._limiter: Final = limiter
        self._known: Final[dict[object, CompiledLimit | None]] = {}
        self._lock: Final = fork_safe(Lock())
        # Compiled at startup, so that every process gives them the same names.
        for tier, limit in (rule.tiers or {}).items():
            self._known[tier] = None if limit is None else compiler(limit, tier_name(scope, tier))

    def choose(self, request: Request) -> CompiledLimit | None:
        """Return the limit of a request; `None` if it is not limited.

        Raises:
            ConfigError: The callable of the user returned something else.
        """
        choose = self.rule.choose
        given = None if choose is None else choose(request)
        try:
            return self._known[given]
        except KeyError:
            return self._find(given)
        except TypeError as error:
            raise ConfigError(f"{self.name}: {_EXPECTED}, found {given!r}") from error

    def _find(self, given: Any) -> CompiledLimit | None:
        if self.rule.tiers is not None:
            raise ConfigError(f"tier of {self.name}: {_unknown(given, self.rule.tiers)}")
        if self._base is not None:
            return self._remember(given, self._tier_of_file(given))
        if given is None:
            return None
        if not isinstance(given, str | Limit):
            raise ConfigError(f"{self.name}: {_EXPECTED}, found {given!r}")
        return self._remember(given, given)

    def _tier_of_file(self, given: object) -> str:
        known = self._limiter.limits
        name = tier_name(self.name, str(given))
        if not isinstance(given, str) or name not in known:
            raise ConfigError(f"tier of {self.name}: {_unknown(given, tiers_of(known, self.name))}")
        return name

    def _remember(self, given: object, limit: str | Limit) -> CompiledLimit:
        with self._lock:
            if len(self._known) >= _MAX_LIMITS:
                raise ConfigError(
                    f"{self.name}: the callable has returned {_MAX_LIMITS} different limits; "
                    f"use tiers, or overrides for single clients"
                )
            found = self._known[given] = self._compile(limit, None)
        return found

    def names(self) -> list[str]:
        """Return the names of the tiers' limits, or those that were chosen so far."""
        if self._base is not None:
            base = self._base
            return [tier_name(base, tier) for tier in tiers_of(self._limiter.limits, base)]
        return [limit.name for limit in [*self._known.values()] if limit is not None]


_EXPECTED: Final = "limit must return a name, a text such as '30/minute', a Limit or None"


def tier_name(base: str, tier: str) -> str:
    """Return the name of a tier's limit, as the limits file names it."""
    return f"{base}_{tier}"


def tiers_of(known: Iterable[str], base: str) -> list[str]:
    """Return the tiers of a limit in the limits file."""
    prefix = tier_name(base, "")
    return [name.removeprefix(prefix) for name in known if name.startswith(prefix)]


def _unknown(given: object, known: Iterable[str]) -> str:
    return f"there is no {given!r}; {did_you_mean(str(given), known)}"
