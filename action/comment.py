"""Writes the text of a pull request's comment from what ``phantora diff --json --fail-above`` prints.

    python3 comment.py DIFF.json COMMENT.md

The same text goes to the step's summary, the verdict and the text's path to its outputs. Ends with 1 if the verdict is
``fail``, or ``inconclusive`` and FAIL_ON_INCONCLUSIVE is ``true``.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

_SIGNS = {"pass": "✅ pass", "fail": "❌ fail", "inconclusive": "❔ inconclusive"}
_MOST_CAUSES = 5


def comment(difference: dict[str, Any]) -> str:
    """Markdown: the verdict, a table of the metrics, the causes."""
    verdict, step = difference["verdict"], difference["step_ns"]
    said = verdict["text"][:1].upper() + verdict["text"][1:]
    lines = [f"### Phantora: {_SIGNS[verdict['result']]}", "", f"{said}.", ""]
    lines += ["| | base | head | change |", "| --- | ---: | ---: | ---: |"]
    lines.append(_row("step (ms)", step["a"] / 1e6, step["b"] / 1e6))
    lines += [_row(rate["name"], rate["a"], rate["b"]) for rate in difference["rates"]]
    for peak in difference["peaks_bytes"]:
        lines.append(_row(f"{peak['name']} memory (GiB)", peak["a"] / 2**30, peak["b"] / 2**30))
    causes = difference["causes"][:_MOST_CAUSES] if not difference["equal"] else []
    if causes:
        effects = ((cause["text"], cause["effect_ns"] / 1e6) for cause in causes)
        lines += ["", "Causes:", *(f"- {text} ({effect:+.3f} ms a step)" for text, effect in effects)]
    return "\n".join(lines) + "\n"


def _row(name: str, a: float, b: float) -> str:
    change = f"{100 * (b / a - 1):+.2f} %" if a else "new"
    return f"| {name} | {a:,.4g} | {b:,.4g} | {change} |"


def _append(variable: str, text: str) -> None:
    path = os.environ.get(variable)
    if path:
        with open(path, "a") as file:
            file.write(text)


def main() -> int:
    """The exit status."""
    difference = json.loads(Path(sys.argv[1]).read_text())
    text, result = comment(difference), difference["verdict"]["result"]
    Path(sys.argv[2]).write_text(text)
    print(text)
    _append("GITHUB_STEP_SUMMARY", text)
    _append("GITHUB_OUTPUT", f"verdict={result}\ncomment={sys.argv[2]}\n")
    return int(result == "fail" or (result == "inconclusive" and os.environ.get("FAIL_ON_INCONCLUSIVE") == "true"))


if __name__ == "__main__":
    sys.exit(main())
