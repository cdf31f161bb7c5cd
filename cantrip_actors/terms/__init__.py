"""The values that users write: cantrips, calls, circles, gates, wards, messages and images, all frozen, and the errors.

A term is checked when it is made and never changes. This package does no I/O and knows no runtime.
"""
