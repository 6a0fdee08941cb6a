"""Changes to torch, Python and libraries inside a rank, one subject per module.

``phantora/launch/stub_loader.py`` and ``rank.py`` install them. Changes to frameworks are in ``phantora/launch/shims``.
"""
