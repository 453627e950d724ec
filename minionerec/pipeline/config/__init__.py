"""The settings of each stage; light to import, so that `--help` is fast."""
