"""The scoreboard: every figure of README and docs in one table, next to the figure of the last commit.

    python -m validation.scoreboard [--tier full] [--only GROUP,...] [--cases FOLDER] [--out FOLDER]

`rows` has the rows and their table, `groups` the groups by name. A group is a list of cases; a case makes rows.
"""
