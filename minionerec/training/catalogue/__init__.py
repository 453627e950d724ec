"""The stage that trains a catalogue model: maximum likelihood at every item, then, if wanted, a reward."""

from minionerec.training.catalogue.stage import run_catalogue

__all__ = ["run_catalogue"]
