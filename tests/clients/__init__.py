"""The published clients against our service: what each of them can do (W-20, W-23, W-24)."""
