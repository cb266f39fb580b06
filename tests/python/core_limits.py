"""Limits of each kind, for tests that try every verb on them."""

from __future__ import annotations

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
