"""What every HTTP server of this package has in common.

In the order a request meets it: `connection_limits` (how many connections, and for how long), `middleware`
(Host and Origin checks, body size, security headers), `errors` (one shape for every error), `responses` (JSON
and events). `server` runs an app in a command.
"""
