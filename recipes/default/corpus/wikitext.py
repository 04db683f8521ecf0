"""Wikipedia's own markup to plain lines: links, templates, tables, references."""

from __future__ import annotations

import html
import re
from collections.abc import Callable

COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
REFERENCES = re.compile(r"<ref[^>/]*/>|<ref\b[^>]*>.*?</ref\s*>", re.DOTALL | re.IGNORECASE)
NOT_TEXT = re.compile(
    r"<(gallery|math|timeline|imagemap|score|syntaxhighlight|source|code|pre|div|table|chem)\b[^>]*>.*?</\1\s*>",
    re.DOTALL | re.IGNORECASE,
)
TEMPLATE = re.compile(r"\{\{([^{}]*)\}\}")
TABLE = re.compile(r"\{\|(?:(?!\{\||\|\}).)*\|\}", re.DOTALL)
FILE_LINK = re.compile(
    r"\[\[(?:File|Image|Category|[a-z]{2,3}|[a-z]{2,3}-[a-z]+|simple|zh-[a-z-]+):"
    r"(?:[^\[\]]|\[\[[^\[\]]*\]\]|\[[^\[\]]*\])*\]\]",
    re.IGNORECASE,
)
LINK = re.compile(r"\[\[(?:[^\[\]|]*\|)?([^\[\]|]*)\]\]")
WEB_LINK = re.compile(r"\[(?:https?:|ftp:|//)[^\s\]]*\s*([^\]]*)\]")
BREAK = re.compile(r"<br\s*/?>", re.IGNORECASE)
TAG = re.compile(r"</?[a-zA-Z][^>\n]{0,200}>")
EMPHASIS = re.compile(r"'{2,5}")
# unit: (its name, the unit it is converted to, the factor)
UNITS = {
    "mi": ("miles", "km", 1.609344), "km": ("km", "mi", 0.621371), "ft": ("feet", "m", 0.3048),
    "m": ("metres", "ft", 3.28084), "in": ("inches", "mm", 25.4), "mm": ("mm", "in", 0.0393701),
    "cm": ("cm", "in", 0.393701), "acre": ("acres", "ha", 0.404686), "ha": ("hectares", "acres", 2.47105),
    "sqmi": ("square miles", "km2", 2.58999), "km2": ("square kilometres", "sq mi", 0.386102),
    "lb": ("pounds", "kg", 0.453592), "kg": ("kg", "lb", 2.20462), "mph": ("mph", "km/h", 1.609344),
    "km/h": ("km/h", "mph", 0.621371), "kn": ("knots", "km/h", 1.852), "nmi": ("nautical miles", "km", 1.852),
    "yd": ("yards", "m", 0.9144), "oz": ("ounces", "g", 28.3495), "shp": ("shp", "kW", 0.7457),
    "sqft": ("square feet", "m2", 0.092903), "LT": ("long tons", "t", 1.01605),
    "mi2": ("square miles", "km2", 2.59),
}  # fmt: skip
FIRST_VALUE = frozenset(
    "nowrap small abbr angbr smallcaps quote cquote blockquote quotation val nihongo sic big nobr".split()
)
LAST_VALUE = frozenset("lang transl".split())
SHIPS = frozenset("uss hms ss rms hmas sms hmcs usns mv uscgc".split())
SIGNS = {
    "ndash": "–",
    "snd": " – ",
    "spaced ndash": " – ",
    "-": " – ",
    "mdash": "—",
    "dash": "—",
    "'": "'",
    "'s": "'s",
}


def convert(values: list[str]) -> str:
    """`{{convert|10|mi}}` as readers see it: 10 miles (16 km)."""
    if len(values) >= 4 and values[1] in ("-", "–", "to", "and", "x", "by"):
        joint = "–" if values[1] in "-–" else f" {values[1]} "
        name = UNITS.get(values[3], (values[3], "", 0))[0]
        return f"{values[0]}{joint}{values[2]} {name}"
    number, unit = values[0], values[1]
    if unit not in UNITS:
        return f"{number} {unit}"
    name, other, factor = UNITS[unit]
    try:
        value = float(number.replace(",", ""))
    except ValueError:
        return f"{number} {name}"
    decimals = len(number.partition(".")[2])
    converted = value * factor
    places = max(decimals, 0 if converted >= 10 else 1)
    return f"{number} {name} ({converted:,.{places}f} {other})"


def expand(match: re.Match[str]) -> str:
    """What a template prints, for those that print a piece of the sentence they are in."""
    name, *arguments = match.group(1).split("|")
    name = name.strip().lower()
    values = [argument.strip() for argument in arguments if "=" not in argument]
    if name in SIGNS:
        return SIGNS[name]
    if not values:
        return "c." if name in ("circa", "c.") else ""
    if name in ("convert", "cvt") and len(values) >= 2:
        return convert(values)
    if name in FIRST_VALUE:
        return values[0]
    if (name in LAST_VALUE and len(values) > 1) or name.startswith("lang-"):
        return values[-1]
    if name in SHIPS:
        return f"{name.upper()} {values[0]}"
    if name in ("ship", "sclass", "sclass-", "sclass2", "sclass2-") and len(values) > 1:
        return f"{values[0]} {values[1]}" if name == "ship" else f"{values[0]}-class {values[1]}"
    if name in ("frac", "fraction"):
        return "/".join(values)
    if name in ("circa", "c."):
        return f"c. {values[0]}"
    if name == "as of":
        return f"As of {values[0]}"
    return {"us$": f"US${values[0]}", "gbp": f"£{values[0]}"}.get(name, "")


def _repeat(
    pattern: re.Pattern[str], replacement: str | Callable[[re.Match[str]], str], text: str, times: int
) -> str:
    """From the inside out: templates and tables stand in one another."""
    for _ in range(times):
        text, count = pattern.subn(replacement, text)
        if not count:
            break
    return text


def lead_title(text: str) -> str:
    """The first bold words before the first heading: an article names its subject so."""
    bold = re.search(r"'''+(.{2,100}?)'''", text.split("\n==", 1)[0])
    title = EMPHASIS.sub("", bold.group(1)).strip(" \":;,.'") if bold else ""
    return title[:1].upper() + title[1:]


def plain(text: str) -> tuple[str, str]:
    """(title, lines): an article without its markup."""
    text = NOT_TEXT.sub("", REFERENCES.sub("", COMMENT.sub("", text)))
    text = _repeat(TEMPLATE, expand, text, 12)
    text = _repeat(TABLE, "", text, 5)
    text = _repeat(FILE_LINK, "", text, 4)
    text = WEB_LINK.sub(r"\1", LINK.sub(r"\1", text))
    text = html.unescape(html.unescape(TAG.sub("", BREAK.sub(" ", text))))
    return lead_title(text), EMPHASIS.sub("", text)
