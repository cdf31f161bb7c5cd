"""`python -m bench service`: one FastAPI service with a typed agent, by this project and by others, under load."""
