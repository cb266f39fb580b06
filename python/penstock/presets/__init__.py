"""Limit names and numbers of known systems, for the `names` argument of `Limits.load`."""
