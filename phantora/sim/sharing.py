"""GPUs that several processes share: how they take turns."""

TIME_SLICE_NS = 2_000_000
CONTEXT_SWITCH_NS = 100_000
