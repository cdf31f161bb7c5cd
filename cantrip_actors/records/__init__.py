"""The content of a loom: records, their codec, the hash chain that seals them, and the blobs that they refer to."""
