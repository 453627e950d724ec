"""From a model to a report: prediction, baselines, tables, plots and the report that a person reads."""
