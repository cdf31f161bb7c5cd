"""Seals: the key of a hash chain, and the sealed files of lines."""
