"""What Python and the native code share: shared memory (`layout`), the engine's C interface (`engine`), constants.

Both generate their C headers.

Process: every one.
"""
