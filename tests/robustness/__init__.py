"""Programs that try to break a run: fuzzers, faults, hangs, sanitizers, schedules, long runs."""
