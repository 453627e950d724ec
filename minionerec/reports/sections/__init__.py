"""Sections of pages: each is a function of what its page draws on."""
