"""An agent that pays for people, and the service in which it works."""
