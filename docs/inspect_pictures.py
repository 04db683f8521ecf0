"""Make the figures of inspect.md, as a notebook shows them: python docs/inspect_pictures.py"""

from __future__ import annotations

from pathlib import Path

import glassgpt
from glassgpt.inspect import AblateHead

HERE = Path(__file__).parent


def main() -> None:
    gpt = glassgpt.load("default", device="cpu", dtype="float32")
    trace = gpt.trace("The old house stood at the end of the lane")
    prompt = gpt.trace("The old house stood at the")
    trace.to_svg(HERE / "inspect_trace.svg")
    trace.attention.to_svg(HERE / "inspect_attention.svg")
    gpt.intervene(prompt, AblateHead(8, 6)).to_svg(HERE / "inspect_intervene.svg")
    gpt.attribute(prompt, " foot").to_svg(HERE / "inspect_integrated.svg")
    gpt.attribute(prompt, " foot", "direct_logit_attribution").to_svg(HERE / "inspect_direct.svg")


if __name__ == "__main__":
    main()
