"""Sizes in bytes, times in ns."""

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
NS = {"us": 1e3, "ms": 1e6, "s": 1e9}
