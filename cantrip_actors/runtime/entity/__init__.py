"""One entity while it is loaded: how it begins or is loaded, its driver, its children, and its removal."""
