"""The demos of `cantrip demo`: whole programs like the other examples, and the only ones that the wheel carries."""
