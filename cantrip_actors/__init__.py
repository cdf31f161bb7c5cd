"""Cantrip: language-model agents as supervised actors."""
