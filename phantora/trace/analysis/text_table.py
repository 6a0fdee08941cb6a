"""The form of all tables in a terminal."""

from __future__ import annotations

from rich.table import Table


def text_table(title: str, *columns: str, left: int = 1) -> Table:
    """An empty table; the first `left` columns are names."""
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for i, column in enumerate(columns):
        # Where a terminal is narrow names wrap; numbers stay whole.
        table.add_column(column, justify="left" if i < left else "right", no_wrap=i >= left, overflow="fold")
    return table
