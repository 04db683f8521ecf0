"""Make the figures of inspect.md, as a notebook shows them.

python docs/inspect_pictures.py [-o docs]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import glassgpt
from glassgpt.inspect import AblateHead


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--out", type=Path, default=Path(__file__).parent)
    out = parser.parse_args().out
    gpt = glassgpt.load("default", device="cpu", dtype="float32")
    trace = gpt.trace("The old house stood at the end of the lane")
    prompt = gpt.trace("The old house stood at the")
    trace.to_svg(out / "inspect_trace.svg")
    trace.attention.to_svg(out / "inspect_attention.svg")
    gpt.intervene(prompt, AblateHead(8, 6)).to_svg(out / "inspect_intervene.svg")
    gpt.attribute(prompt, " foot").to_svg(out / "inspect_integrated.svg")
    gpt.attribute(prompt, " foot", "direct_logit_attribution").to_svg(out / "inspect_direct.svg")


if __name__ == "__main__":
    main()
