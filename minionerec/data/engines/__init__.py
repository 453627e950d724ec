"""Engines that run the builder's statements: DuckDB in this process, and those that installed packages register.

`minionerec.data.build` runs the statements of `minionerec.data.engines.statements` in order; every engine understands
them, and their size is bounded by disk, not by memory.
"""
