"""An OpenAI-compatible server for completions.

In the order a request meets it: `server` (the process: signals, draining), `app` (all together), `auth` (the
API key), `schemas` (bodies), `routes` (the endpoints), `models` (those it serves, by name), `completions`
(from a request to jobs for the service, and back), `logprobs` (tokens as text), `metrics`.
`generate/service.py` is what computes; `http/` what every server of this package stands on.
"""
