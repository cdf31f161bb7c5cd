"""Measurements, one command each: `python -m bench turns`. Not installed."""
