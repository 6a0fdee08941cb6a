"""Trainers of other projects that run under simulation, each in an environment of its own."""
