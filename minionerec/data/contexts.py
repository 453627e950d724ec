"""The values of a session context (`minionerec.data.session`); models read their indices."""

UNKNOWN, SAME, LATER = 0, 1, 2
SESSION_CONTEXTS = ("unknown", "same", "later")
