"""What the project promises, compared with something from outside: suites, Erlang, recordings. Not installed."""
