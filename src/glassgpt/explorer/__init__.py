"""The Explorer: a page that shows every step of the forward pass, and the small server behind it.

`models` (the open models), `examples` (what the page offers for each), `traces` (a cache of traced texts),
`salient_heads` (where the page opens), `schemas` (request bodies), `compute_queue` (one computation at a
time), `dependencies` (what routes have in common), `routes/` (the endpoints), `static_files` (the page's
files), `app` (all together), `page/` (the browser's part).
"""
