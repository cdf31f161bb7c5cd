"""The common parts of all stores: their interface, the rules for the next records, mail and leases. No I/O."""
