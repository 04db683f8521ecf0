"""What every HTTP server of this package stands on, and the Explorer's is one.

In the order a request meets it: `connections` (how many a client may hold, and how long it may take), `guard`
(is it for us, from our own page, and not too large), `errors` (one shape for everything that is refused),
`worker` (the model computes for one request at a time), `answers` (JSON and events), `files` (the page
itself).
"""
