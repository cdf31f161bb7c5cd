"""How people reach a runtime from outside: the command line, and the recipes it reads.

Nothing here decides how an entity behaves: the same cantrip gives the same turns whichever way it was cast (PROD-1).
"""
