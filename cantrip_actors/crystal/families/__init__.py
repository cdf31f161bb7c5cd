"""The provider families, one file each: how a context is encoded for its API and how its stream is decoded."""
