"""Measures operators of a table of kernel times anew, on the GPU that the table is of.

    python -m validation.probes.remeasure TABLE --out NEW.parquet [--classes optimizer,elementwise] [--also OLD.parquet] [--budget SECONDS]

NEW holds what TABLE holds, with new times for the operators of the classes (all without --classes), and for those
of the classes that only OLD knows. Interrupted or out of time, the same command goes on.
"""  # fmt: skip

from __future__ import annotations

import argparse
from pathlib import Path

from phantora.cost.families import base_name, class_of
from phantora.cost.table import Entry, read_table, write_table
from phantora.cost.wanted import Wanted
from phantora.profile.session import Book, measure_all


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--classes", default="")
    parser.add_argument("--also", type=Path)
    parser.add_argument("--budget", type=float)
    options = parser.parse_args()
    classes = frozenset(filter(None, options.classes.split(",")))

    def chosen(entry: Entry) -> bool:
        return not classes or class_of(base_name(entry.parsed.name)) in classes

    table = read_table(options.table)
    wanted = [entry for entry in table if chosen(entry)]
    if options.also:
        wanted += [entry for entry in read_table(options.also) if chosen(entry)]
    if not options.out.exists():
        write_table(options.out, table.about, [entry for entry in table if not chosen(entry)])
    book = Book(options.out)
    left = book.missing(Wanted(entry.signature, entry.compute) for entry in wanted)
    print(f"{len(left)} operators to measure", flush=True)
    measure_all(left, book.add, options.budget)
    book.finish()
    for text, reason in book.refused:
        print(f"not measured: {text[:80]}: {reason}")
    print(f"{options.out}: {len(book.entries)} operators, {len(book.lacks(left))} are left")


if __name__ == "__main__":
    main()
