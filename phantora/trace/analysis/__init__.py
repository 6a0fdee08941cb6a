"""The numbers of ``phantora analyze``, from a log alone (docs/analysis.md).

`analyze` makes the report (`report`) of the steps that `steps` finds; `render` prints it.
"""
