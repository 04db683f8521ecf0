"""The page's languages: the same messages in each, all of them used, and no words of its own in a module."""

from __future__ import annotations

import re

import pytest

from tests.explorer.test_page_files import FILES, PAGE, code

LANGUAGES = ("en", "ko", "zh")
VALUE = re.compile(r"\{(\w+)(?:\?([^|}]*)\|([^}]*))?\}")
LITERAL = re.compile(r'"((?:[^"\\\n]|\\.)*)"|`((?:[^`\\]|\\.)*)`')
LETTERS = {"ko": r"[가-힣]", "zh": r"[一-鿿]"}


def read_messages(language: str) -> dict[str, str]:
    lines = (PAGE / "languages" / f"{language}.js").read_text("utf-8").splitlines()
    found = [re.fullmatch(r'  "([\w.]+)": "((?:[^"\\]|\\.)*)",', line) for line in lines]
    pairs = [(match[1], match[2]) for match in found if match]
    assert len(pairs) == sum('": "' in line for line in lines), "one message in each line"
    assert len(dict(pairs)) == len(pairs), "a key is given twice"
    return dict(pairs)


MESSAGES = {language: read_messages(language) for language in LANGUAGES}
MODULES = {
    path: code(path.read_text("utf-8"))
    for path in FILES
    if path.suffix in (".js", ".html") and path.stem not in LANGUAGES
    if "engine" not in path.parts  # it says what a server says, in the same words
}


def test_every_language_has_the_same_keys_in_the_same_order() -> None:
    keys = [list(messages) for messages in MESSAGES.values()]
    assert len(keys[0]) > 700
    for other in keys[1:]:
        assert set(keys[0]) ^ set(other) == set()
        assert keys[0] == other


def parts(message: str) -> tuple[list[str], list[str], int]:
    """Its values, the words it explains, and how often bold begins or ends."""
    values = {name for name, _, _ in VALUE.findall(message)}
    return sorted(values), sorted(re.findall(r"\]\((\w+)\)", message)), message.count("**")


@pytest.mark.parametrize("language", LANGUAGES[1:])
def test_translations_have_the_same_values(language: str) -> None:
    english, translated = MESSAGES["en"], MESSAGES[language]
    differ = [key for key in english if parts(english[key]) != parts(translated.get(key, ""))]
    assert differ == []
    assert all(message.count("{") == len(VALUE.findall(message)) for message in translated.values())


@pytest.mark.parametrize("language", LANGUAGES[1:])
def test_everything_is_translated(language: str) -> None:
    letters = re.compile(LETTERS[language])
    left = {key for key, message in MESSAGES[language].items() if not letters.search(message)}
    assert left - SAME == set()


# Names, formulas and signs, which are the same in all languages.
SAME = set(
    """
    aside block.mlp block.read.says family.and
    family.both.examples family.encoder.examples family.label family.memory.examples
    next.minP next.topK next.topP page.title
    scores.says steer.and steer.token table.logit
    tally.mlp tally.tensor term.logit term.space
    tour.step tour.tally.mlps tour.why.mlps tower.read
    """.split()
)


def names_in(text: str) -> set[str]:
    return {first for first, _ in LITERAL.findall(text) if first}


def test_every_message_is_used_and_every_used_one_is_there() -> None:
    keys = set(MESSAGES["en"])
    rooms = {key.partition(".")[0] for key in keys if "." in key}
    used: set[str] = set()
    missing: set[str] = set()
    for text in MODULES.values():
        literals = names_in(text)
        used |= literals & keys | set(re.findall(r'data-t(?:-label)?="([\w.]+)"', text))
        for asked in re.findall(r'\b(?:t|say)\("([\w.]+)"', text):
            missing |= {asked} - keys
        missing |= {
            name
            for name in literals
            if re.fullmatch(r"[a-z]+(\.\w+)+", name)
            and name.partition(".")[0] in rooms - {"mlp"}
            and name not in keys
            and not name.endswith((".js", ".mid", ".weight"))
        }
        # `term.${name}`: what stands for the hole is a word, or one of the module's own names.
        holes = "|".join([r"\w*", *(re.escape(name) for name in literals if "." in name)])
        for template in re.findall(r"`([a-z]+\.(?:[\w.]|\$\{(?:[^{}]|\{[^{}]*\})*\})*)`", text):
            if "${" in template and template.partition(".")[0] in rooms:
                pattern = "".join(
                    f"(?:{holes})" if part.startswith("$") else re.escape(part)
                    for part in re.split(r"(\$\{(?:[^{}]|\{[^{}]*\})*\})", template)
                )
                used |= {key for key in keys if re.fullmatch(pattern, key)}
    assert missing == set()
    # Tensors are named by the server; examples by explorer/examples.py.
    unused = {key for key in keys - used if not key.startswith("tensor.")}
    assert unused == set()


def test_examples_are_those_of_the_server() -> None:
    from glassgpt.explorer import examples

    listed = [*examples.TEXTS, *examples.MUSIC, *(one for task in examples.TASKS.values() for one in task)]
    english = MESSAGES["en"]
    assert {(english[f"example.{one.key}"], english[f"example.{one.key}.says"]) for one in listed} == {
        (one.name, one.words) for one in listed
    }
    keys = {one.key for one in listed} | {"ids"}
    assert {key.split(".")[1] for key in english if key.startswith("example.")} == keys


WORDS = re.compile(r"[A-Za-z’']{2,}[,.:;]? [A-Za-z’']{2,}")
LABEL = re.compile(r'(?:title|placeholder|"aria-label"): $')
# Before a literal that is no text: class names, selectors, fonts, stages of a block, faults of the page.
CODE_BEFORE = re.compile(
    r"(?:class: (?:[\w.]+ \? )?(?:\"[^\"]*\" : )?|className = [\w.]+ \? "
    r"|\b(?:querySelector|querySelectorAll|matches|closest|matchMedia|step)\("
    r"|font = |new Error\(|DOMException\()$"
)
# The text that the page opens with, commands, fonts and class names.
NO_TEXT = re.compile(r"A robot must obey|glassgpt explore|\d+px |(?:cell| fresh) is-")


def test_no_module_has_words_of_its_own() -> None:
    found: list[str] = []
    for path, text in MODULES.items():
        if path.suffix == ".html" or path.name in ("server.js", "language.js"):
            continue
        for match in LITERAL.finditer(text):
            literal = re.sub(r"\$\{[^}]*\}+", "", match[1] or match[2] or "")
            before = text[max(0, match.start() - 60) : match.start()]
            is_text = WORDS.search(literal) and not CODE_BEFORE.search(before) and "=>" not in literal
            is_label = LABEL.search(before) and re.search(r"[A-Za-z]{3}", literal)
            if (is_text or is_label) and not NO_TEXT.match(literal):
                found.append(f"{path.name}: {literal[:80]}")
    assert found == []
