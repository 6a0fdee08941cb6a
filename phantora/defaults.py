"""Defaults of options."""

CLUSTER = "1x1xH100"
PROBE_ROUNDS = 48  # of `profile host`
