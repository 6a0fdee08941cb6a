"""The event log and what is made from it."""
