"""From a model to a report: prediction, floors, tables, plots and the report that a person reads."""
