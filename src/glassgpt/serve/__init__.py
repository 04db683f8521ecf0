"""An OpenAI-compatible server for completions.

In the order in which a request meets them: `server` (the process: signals, draining), `app` (the parts
put together), `request_log` (ids, log lines), `auth` (the API key), `overload` (refusing early),
`schemas` (bodies), `routes` (the endpoints), `state` (what all requests share), `models` (the models by
name; `weight_files`: their files), `request` (a body in the engine's terms), `completions` (jobs for the
service, and choices from their events), `grammars`, `delivery` (from the service's thread to the event
loop), `answer` (a body to a response), `event_stream`, `observer` (`metrics`, `recent` requests, the
log), `choice_stream` and `logprobs` (tokens as text), `apis/` (chats, embeddings, Ollama's endpoints),
`page` (/) and `docs_page` (/docs). `generate/service/service.py` computes; `http/` is the base of every
server of this package.
"""
