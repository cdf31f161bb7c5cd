"""A browser for entities: gates over tabs of a real Chromium, of which every request goes through a filtering proxy.

`gates.py` has what an entity calls. `entity_browser.py` is the browser of one entity, `driver.py` the thread and the
processes that entities share, `proxy.py` the only way of a page to the network. `page_text.py` renders a page.
"""
