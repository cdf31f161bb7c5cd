"""Queries to crystals: an actor for each crystal in use, and the queries that an entity makes."""
