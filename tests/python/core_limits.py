"""Limits of each kind, for tests that try all of them."""

from __future__ import annotations

from penstock import Limit

# One of each algorithm, which test_limit.py compares with those of the core.
EACH = {
    "token-bucket": Limit.token_bucket(burst=20, count=40, period="1m"),
    "leaky-bucket": Limit.leaky_bucket(size=30, drip_rate="500ms", drip_size=2),
    "fixed-window": Limit.fixed_window(count=10, period="1h", anchor="aligned", phase="6m"),
    "fixed-rate-window": Limit.fixed_rate_window(count=5, period=1, burst=2),
    "in-flight": Limit.in_flight(5, lease="2m", retry_after=3, max_hold="10m"),
    "calendar-window": Limit.calendar_window(count=5, period="month", zone="Europe/Berlin"),
    "unlimited": Limit.unlimited(),
}
# Those whose tokens refill.
RATES = {name: limit for name, limit in EACH.items() if name not in {"in-flight", "unlimited"}}
FILE = """
Orders:
  burst: 4
  count: 2
  period: 1s
  description: orders of one account
  docs: https://example.com/limits#orders
Mails: {burst: 2, count: 1, period: 1m}
Notes: {algorithm: leaky-bucket, size: 4, drip_rate: 1s}
Pages: {algorithm: fixed-window, count: 4, period: 1s}
Calls: {algorithm: fixed-rate-window, count: 5, period: 1s, burst: 3}
Free: {algorithm: unlimited}
Watch: {burst: 1, count: 1, period: 1m, mode: shadow}
Accounts: {burst: 4, count: 2, period: 1s, id: regId, number: 6}
"""
LIMITED = ["Orders", "Notes", "Pages", "Calls"]
