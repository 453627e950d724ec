"""Engines that run the builder's statements: DuckDB in this process, Spark on one machine or many.

`minionerec.data.build` runs the statements of `minionerec.data.engines.statements` in order; both engines understand
them, and their size is bounded by disk, not by memory.
"""
