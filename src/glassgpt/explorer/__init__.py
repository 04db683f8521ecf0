"""The Explorer: a page that shows every step of the forward pass, and the small server behind it.

`models` (the open models), `traces` (a cache of traced texts), `schemas` (request bodies), `dependencies`
(what routes have in common), `routes/` (the endpoints), `app` (all together), `page/` (the browser's part).
"""
