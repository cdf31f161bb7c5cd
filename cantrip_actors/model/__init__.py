"""The eleven terms as values, the ward algebra, and the loop as a pure state machine.

No I/O, no clock, no randomness, no task: what is decided here can be tested by tables and properties, and is.
"""
