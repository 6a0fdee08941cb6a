"""Timelines from the log. :func:`export` picks the writer by the suffix of the output path."""

from phantora.trace.export.registry import FORMATS, export, format_of, formats

__all__ = ["FORMATS", "export", "format_of", "formats"]
