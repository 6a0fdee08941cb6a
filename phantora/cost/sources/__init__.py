"""Sources of prices: one class per module, asked in the order that :class:`phantora.cost.model.GpuCostModel` lists.

A source implements :class:`phantora.cost.query.Source`. The first source with a price decides.
"""
