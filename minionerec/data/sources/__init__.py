"""Readers of raw data: one file for each form, each giving a `minionerec.data.source.Source`."""
