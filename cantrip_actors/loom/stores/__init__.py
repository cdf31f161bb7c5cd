"""What all stores have in common: their interface, the rules for the next records, mail and leases. No I/O."""
