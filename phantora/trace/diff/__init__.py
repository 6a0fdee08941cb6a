"""``phantora diff``: the change of a step between two logs, by its causes (docs/analysis.md).

`compare` makes the difference, `causes` names what changed, `verdict` compares it with a limit.
"""
