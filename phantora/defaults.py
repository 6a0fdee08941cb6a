"""Defaults of options."""

CLUSTER = "1x1xH100"
MOE_ROUTING = "balanced"
PROBE_ROUNDS = 48  # of `profile host`
