"""Changes to torch, Python and libraries inside a rank, one subject per module.

``phantora/rank/stub_loader.py`` and ``rank.py`` install them. Changes to frameworks are in ``phantora/rank/shims``.
"""
