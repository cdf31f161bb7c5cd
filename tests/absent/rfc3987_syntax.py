"""This package, which parses grammars for seconds wherever jsonschema is imported, is as if it were not installed."""

raise ImportError("the tests do without it")
