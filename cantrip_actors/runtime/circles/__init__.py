"""The circle of an entity: the actors that run its gates and programs, snapshots, and servers of tools."""
