"""The tables of the SQL stores, and what both do with them."""
