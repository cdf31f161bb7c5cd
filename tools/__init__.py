"""What keeps this house in order: lints of its own, and the generator of docs/rules.md. Not installed."""
