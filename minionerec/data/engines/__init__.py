"""Engines that prepare a corpus larger than memory: DuckDB in this process, Spark on one machine or many.

What is done to interactions is a handful of SQL statements (`minionerec.data.engines.statements`) that both engines
understand; `minionerec.data.engines.build` runs them in order, and gives what `minionerec.data.build` gives in memory.
"""
