"""Sizes in bytes."""

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
