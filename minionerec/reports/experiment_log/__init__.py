"""The experiment log: one document about any number of data sets, stages and methods, made from finished artefacts."""
