"""Sections of the report: each takes the `Material` and gives a `Section`."""
