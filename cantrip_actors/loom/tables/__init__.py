"""The tables of the SQL stores, and the code that both stores share."""
