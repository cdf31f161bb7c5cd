"""A runtime as a node of a cluster: membership, placement, and the nodes as users see them."""
