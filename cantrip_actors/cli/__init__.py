"""The command line: each command turns its arguments into calls of `Runtime` and `Entity`, and prints the result.

A command does not change how an entity behaves: the same cantrip gives the same turns through every door (PROD-1).
"""
