"""The services that are compared: `app` of each module is an ASGI application, started by uvicorn."""
