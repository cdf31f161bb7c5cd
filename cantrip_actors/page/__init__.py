"""The page that people look at: one renderer, which gets its data from the service or from the exported file itself."""
