"""Metrics of ranked lists, and differences of one metric, in one call."""

from minionerec.metrics.predictions import length_of_lists
from minionerec.metrics.ranking import DEFAULT_KS, check_ks
from minionerec.metrics.results import Bootstrap, RecommenderResults, Results, metrics_at
from minionerec.metrics.statistics import paired_differences


def paired_bootstrap(first, second, *settings, **named):
    return paired_differences({"": first}, {"": second}, *settings, **named)[""]


def evaluate_predictions(predictions, ks=DEFAULT_KS, *, valid_sids=None, n_items=None, list_length=None, **drawn):
    """All metrics of ranked lists, users drawn with all of their examples."""
    ordered = check_ks(ks, length_of_lists(predictions) if list_length is None else list_length)
    levels = ["sid", "item"] if any(predictions.target_sids) else ["item"]
    drawn = {"seed": 0, "resamples": 2000, **drawn}
    bootstrap = Bootstrap(users=predictions.users, **drawn)
    recommenders = {"": RecommenderResults.from_lists("", predictions, list_length)}
    return Results(recommenders, levels, metrics_at(ordered, False), bootstrap).evaluation("", valid_sids, n_items)
