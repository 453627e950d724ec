"""Optional parts. Each may use the rest of the package and no other part; nothing else imports them.

A part registers what it adds by entry points in `pyproject.toml` (`minionerec.core.plugins`), and holds its README, its
settings and a light module with its stages; its tests are in `tests/contrib/<part>`.
"""
