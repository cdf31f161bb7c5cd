"""How a crystal may be asked: rate limits, circuit breaker, deadline, hedged attempts and fallbacks."""
