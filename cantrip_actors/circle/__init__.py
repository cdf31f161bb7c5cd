"""Mediums, standard gates, and how gates run."""
