"""What a page without a server takes from here, so that it is written once: examples, the tally's words."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from glassgpt.explorer.examples import MUSIC, TEXTS
from glassgpt.inspect.parameters.tally import ILLUSTRATED_TOTAL, MEANING, illustrated_count, tally


def site_facts() -> dict[str, Any]:
    """For `Facts` in page/engine/model/parameters.js."""
    small = tally("gpt2")
    return {
        "meanings": MEANING,
        "illustrated": illustrated_rows(),
        "illustrated_total": ILLUSTRATED_TOTAL,
        "published_total": small.total,
        "examples": {
            kind: [asdict(one) for one in some] for kind, some in (("text", TEXTS), ("music", MUSIC))
        },
    }


def illustrated_rows() -> list[dict[str, Any]]:
    """The table of GPT-2 small from The Illustrated GPT-2, beside what was published."""
    return [
        {
            "name": line.name,
            "shape": list(line.shape),
            "count": illustrated_count(line),
            "published": line.count,
        }
        for line in tally("gpt2").lines
    ]
