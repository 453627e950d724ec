"""The user's side of recommending: item ids and titles in and out."""
