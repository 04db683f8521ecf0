"""The endpoints under /api/v1, one router per file."""
