"""What users call: `Runtime`, `Entity`, `Episode`, receipts, the blocking forms, and what `inspect` returns."""
