"""The Explorer: a page that shows a token's journey, and the small server behind it.

`models` (which models are open), `traces` (texts that were run through them), `shapes` (what a request may
say), `app` (the endpoints), `export` (the page with its answers in one file), `page/` (the browser's part).
"""
