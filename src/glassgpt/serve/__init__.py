"""An OpenAI-compatible server for completions.

In the order a request meets it: `server` (the process: signals, draining), `app` (all together),
`request_log` (ids, log lines), `auth` (the API key), `overload` (refusing early), `schemas` (bodies),
`routes` (the endpoints), `models` (those it serves, by name; `weight_files`: their files), `completions`
(from a request to jobs for the service, and back), `logprobs` (tokens as text), `metrics`, `page` (/) and
`docs_page` (/docs).
`generate/service/service.py` is what computes; `http/` what every server of this package stands on.
"""
