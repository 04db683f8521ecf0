"""The second edition's text in miniature: from git repositories made here to shuffled pieces."""

from __future__ import annotations

import gzip
import importlib
import json
import lzma
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

RECIPE = Path(__file__).resolve().parents[1] / "recipes" / "default"


@pytest.fixture
def recipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """The recipe's modules, which are scripts beside each other, for one test."""
    monkeypatch.syspath_prepend(str(RECIPE))
    scripts = ("attribution", "clean", "collect", "leaks", "mix")
    parts = ("books", "modern", "page", "reference", "repository", "runs", "sources", "wikipedia", "wikitext")
    modules = {name: importlib.import_module(name) for name in scripts}
    modules |= {name: importlib.import_module(f"corpus.{name}") for name in parts}
    yield SimpleNamespace(**modules)
    for name in [name for name in sys.modules if name in scripts or name.split(".")[0] == "corpus"]:
        del sys.modules[name]


def commit(mirror: Path, name: str, files: dict[str, str]) -> None:
    """One more commit of a repository, which is made if it is not there."""
    folder = mirror / name.replace("/", "+")
    folder.mkdir(parents=True, exist_ok=True)
    git = [
        "git",
        "-C",
        str(folder),
        "-c",
        "user.name=A",
        "-c",
        "user.email=a@b",
        "-c",
        "commit.gpgsign=false",
    ]
    if not (folder / ".git").is_dir():
        subprocess.run([*git, "init", "-q"], check=True)
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    subprocess.run([*git, "add", "-A"], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "texts"], check=True)


def read(
    recipe: SimpleNamespace, mirror: Path, name: str, reader: object, files: dict[str, str]
) -> dict[str, str]:
    commit(mirror, name, files)
    return dict(reader(recipe.repository.Repository(mirror, name, "HEAD")))  # type: ignore[operator]


WORDS = "mill boat sailor queen letter horse river town hill door lamp storm winter bread song road".split()
VERBS = "saw found lost painted sold wanted kept heard carried forgot".split()


def sentences(about: str, count: int = 12) -> str:
    """Plain sentences, others for every subject."""
    draw = random.Random(about)
    told = []
    for _ in range(count):
        first, second, third, fourth = draw.choices(WORDS, k=4)
        did, then = draw.choices(VERBS, k=2)
        year = draw.randrange(10**6)
        told.append(
            f"The {first} of the {about} {did} the {second} and {then} a {third} of the {fourth} in {year}."
        )
    return " ".join(told)


def test_longest_version_of_a_page_and_its_subject_without_capitals(
    recipe: SimpleNamespace, tmp_path: Path
) -> None:
    page = (
        "FRIED LEEKS (often just LEEKS) are a dish[1] that the _cooks_ of NATO know.\n\n\n"
        "History\n\nPot.jpg Most people eat fried leeks in the winter, when other greens are dear "
        "and hard to find.\n\n-   short item\n\n\nReferences\n\nCategory:Food\n\n"
        "[1] A book about leeks, which is long enough to be taken for a part of the text."
    )
    commit(tmp_path, "a/b", {"Page/Fried_leek.md": page + "\n"})
    found = read(recipe, tmp_path, "a/b", recipe.wikipedia.pandoc, {"Page/Fried_leek.md": "A stub.\n"})
    assert found["Fried leek"] == (
        "= Fried leek =\n\nFried leeks (often just leeks) are a dish that the cooks of NATO know.\n\n"
        "== History ==\n\n"
        "Most people eat fried leeks in the winter, when other greens are dear and hard to find."
    )


def test_wikitext_loses_its_markup_and_keeps_converted_units(recipe: SimpleNamespace) -> None:
    title, text = recipe.wikitext.plain(
        "{{Infobox|name={{nowrap|x}}}}'''Mill Lane''' is a [[road|lane]] of {{convert|10|mi}}"
        "<ref>a book</ref> in [[File:A.jpg|thumb|a [[b]]]]Ham{{ndash}}Wick.\n{| class=x\n| cell\n|}\n"
    )
    assert title == "Mill Lane"
    assert text.strip() == "Mill Lane is a lane of 10 miles (16 km) in Ham–Wick."


def test_extracted_articles_lose_sentences_without_their_number(
    recipe: SimpleNamespace, tmp_path: Path
) -> None:
    document = (
        '<doc id="1" url="x" title="A &amp; B">\nA &amp; B\n\nThe tower has of office space. It is old '
        "(; born ]; 3 May).\nHistory.\nEarly years.\nIt was built in stone by the people who had come over "
        "the hills.\nReferences.\nA book.\n</doc>\n"
    )
    files = {"text/AA/wiki_00": document}
    found = read(recipe, tmp_path, "a/b", recipe.wikipedia.extracted_files, files)
    assert found["A & B"] == (
        "= A & B =\n\nIt is old (born; 3 May).\n\n== History ==\n\n=== Early years ===\n\n"
        "It was built in stone by the people who had come over the hills."
    )


def test_other_forms_of_articles(recipe: SimpleNamespace, tmp_path: Path) -> None:
    wikipedia = recipe.wikipedia
    line = sentences("mill", 2)
    core = read(
        recipe,
        tmp_path,
        "a/core",
        wikipedia.core_articles,
        {"dump/x.txt": f"1,\nTheoldmill,\nThe old mill. {line}\n"},
    )
    assert list(core) == ["The old mill"]
    browser = read(
        recipe,
        tmp_path,
        "a/browser",
        wikipedia.browser_pages,
        {"data/Mill.txt": f"{line}\n\nUse[edit]\n\nSee also: x\n{line}[2]\n"},
    )
    assert browser["Mill"] == f"= Mill =\n\n{line}\n\n== Use ==\n\n{line}"
    tokens = "The mill ( 1801 - 1850 ) is `` old '' , is n't it ? " + "It stood . " * 30
    opened = read(
        recipe,
        tmp_path,
        "a/open",
        wikipedia.openings,
        {"request_tok/1.json": json.dumps({"/wiki/Old_mill": tokens})},
    )
    assert opened["Old mill"].startswith(
        '= Old mill =\n\nThe mill (1801-1850) is "old", isn\'t it? It stood.'
    )


def test_works_of_reference(recipe: SimpleNamespace, tmp_path: Path) -> None:
    reference = recipe.reference
    good, noisy = (
        sentences("town", 3),
        "The t~wn of th« hills .and of the | river was seen by m4ny people of the hills." * 2,
    )
    entry = f"+====+\n head\n+====+\n\nABBEY, a house. {good} [9:1:2]\n\n{noisy}\n"
    found = read(recipe, tmp_path, "a/eb", reference.britannica("eb09", 8), {"eb09/TXT/a.txt": entry})
    assert found["Abbey"] == f"= Abbey =\n\nAbbey, a house. {good}"
    page = f"<h1>x</h1><p>{good} by Jiro YAMADA.</p><h2>Life (生涯)</h2><p>{good}</p>"
    found = read(recipe, tmp_path, "a/kyoto", reference.kyoto, {"family/Clan (氏).html": page})
    assert found["Clan"] == f"= Clan =\n\n{good} by Jiro Yamada.\n\n== Life ==\n\n{good}"
    module = (
        '<document xmlns="http://cnx.rice.edu/cnxml" xmlns:m="http://www.w3.org/1998/Math/MathML">'
        f'<title>Light</title><content><para>{good} (<link target-id="f"/>)<cite><note>A book.</note></cite>'
        f"</para><section><title>Speed</title><para>{good} <m:math/></para>"
        f"<para>{good}</para></section></content></document>"
    )
    found = read(recipe, tmp_path, "a/os", reference.openstax, {"modules/m1/index.cnxml": module})
    assert found["Light"] == f"= Light =\n\n{good}\n\n== Speed ==\n\n{good}"
    volume = (
        f'<body><div type="document" n="1"><head>1. Letter<note>n</note></head><p>{good}<note>n</note></p>'
        "<p>[Omitted here is a list of names that nobody needs.]</p></div></body>"
    )
    found = read(recipe, tmp_path, "a/frus", reference.frus, {"volumes/v1.xml": volume})
    assert found == {"v1: Letter": f"= Letter =\n\n{good}"}


def test_modern_prose(recipe: SimpleNamespace, tmp_path: Path) -> None:
    modern, good = recipe.modern, sentences("cell", 2)
    cited = '(<xref ref-type="bibr">Doe, 2010</xref>; see <xref ref-type="fig">1</xref>)'
    study = (
        '<article article-type="research-article"><article-title>Cells <italic>move</italic></article-title>'
        f"<abstract><p>{good} {cited}</p></abstract>"
        f'<abstract abstract-type="executive-summary"><title>eLife digest</title><p>{good}</p></abstract>'
        f'<body><sec sec-type="intro"><title>Introduction</title><p>{good}</p></sec>'
        f"<sec><p>{good}</p></sec></body></article>"
    )
    old = study.replace("Cells", "Old cells")
    files = {"articles/elife-1-v2.xml": study, "articles/elife-1-v1.xml": old}
    found = read(recipe, tmp_path, "a/elife", modern.elife, files)
    assert found == {
        "eLife 1: Cells move": f"= Cells move =\n\n{good}\n\n== eLife digest ==\n\n{good}\n\n"
        f"== Introduction ==\n\n{good}"
    }
    soup = (
        "---\ntitle: 'Leek soup'\n---\n![leeks](a.webp)\n\nA *good* [soup](http://x.org/y)\nfor two.\n\n"
        "- \u23f2\ufe0f Time: 1 hour\n\n## Directions\n\n1. Cut the leeks.\n2. Boil them in\n   salted water."
        "\n\n```\ncode\n```\n{{< hint >}}\n"
    )
    found = read(recipe, tmp_path, "a/food", modern.markdown("content"), {"content/soup.md": soup})
    assert found["Leek soup"] == (
        "= Leek soup =\n\nA good soup for two.\n- Time: 1 hour\n\n== Directions ==\n\n"
        "1. Cut the leeks.\n2. Boil them in salted water."
    )


BOOK = """The Project Gutenberg EBook of a Tale

*** START OF THIS PROJECT GUTENBERG EBOOK A TALE ***

Produced by Somebody

A TALE

By A. WRITER

CONTENTS

I. The Door 1
II. The Window 9
III. The Wall 12

CHAPTER I

THE DOOR

“Come in,” said _she_ to the man at the door.

It was late[1] in the year, and the wind which had been blowing since the
morning was cold; so he came in, as any man would have done, and well-
known as he was he sat down by the fire and did not say a word for a long--
a very long--time.

[Illustration: He sat down.]

{BODY}

I sing of doors,
    and of the floors.

The End

INDEX

Doors, 1, 5, 9
*** END OF THIS PROJECT GUTENBERG EBOOK A TALE ***
License.
"""


def test_book_begins_at_its_chapter_and_ends_before_its_index(recipe: SimpleNamespace) -> None:
    body = "\n\n".join(
        f"{sentences('door', 3)} So it went on, evening after evening, {n}." for n in range(12)
    )
    text = recipe.books.book_text(BOOK.replace("{BODY}", body))
    paragraphs = text.split("\n\n")
    assert paragraphs[:3] == ["CHAPTER I", "THE DOOR", '"Come in," said she to the man at the door.']
    assert paragraphs[3].startswith(
        "It was late in the year, and the wind which had been blowing since the morning"
    )
    assert "and well-known as he was" in paragraphs[3]
    assert "for a long--a very long--time." in paragraphs[3]
    assert paragraphs[-1] == "I sing of doors,\nand of the floors."
    assert len(paragraphs) == 4 + 12 + 1


def test_runs_do_not_depend_on_the_hash_seed_or_on_print(recipe: SimpleNamespace) -> None:
    runs = recipe.runs
    assert runs.word_hashes("The miller").tolist() == runs.word_hashes("the , MILLER.").tolist()
    assert len(set(runs.word_hashes("a b ab ba aa 1 11").tolist())) == 7
    assert runs.word_hashes("mill").tolist() == [8345684983114673303]
    assert len(runs.runs_of(runs.word_hashes("a b c d"), 3)) == 2
    seen = runs.SeenRuns(bits=20)
    words = runs.word_hashes(sentences("boat", 60))
    seen.add(seen.sample(words))
    assert seen.share(seen.sample(words)) == 1.0
    assert seen.share(seen.sample(runs.word_hashes(sentences("ship", 60)))) < 0.9
    assert seen.share(seen.sample(runs.word_hashes("Other words that never were in it " * 30))) < 0.1


SECRET = (
    "Nobody but the old keeper of the lighthouse knew that the lamp had been stolen in the night before "
    "the storm came up"
)


def write_evaluation(folder: Path) -> None:
    folder.mkdir()
    with lzma.open(folder / "wikitext-2-raw.test.xz", "wt", encoding="utf-8") as file:
        file.write(f" = Lamp = \n \n {SECRET} . \n")
    passage = {"text": "She put the cup down and looked at him, and for a while neither of them spoke a word"}
    query = "Question: How do you keep a wooden spoon from cracking when it has been left in the sun?\n"
    choice = {"query": query, "choices": ["with care", "not"], "gold": 0}
    for name, item in (("lambada_test", passage), ("piqa", choice)):
        with lzma.open(folder / f"{name}.jsonl.xz", "wt", encoding="utf-8") as file:
            file.write(json.dumps(item) + "\n")


def test_from_repositories_to_pieces(
    recipe: SimpleNamespace,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def run(module: str, *words: str | Path) -> None:
        monkeypatch.setattr(sys, "argv", [module, *map(str, words)])
        getattr(recipe, module).main()

    mirror = tmp_path / "mirror"
    pages = {f"data/Thing {n}.txt": f"{sentences(f'thing {n}')}\n" for n in range(60)}
    pages["data/Lamp.txt"] = (
        f"{sentences('lamp')}\n{SECRET}, which was a pity for all of them, and for the ships.\n"
    )
    brief = " ".join(SECRET.split()[:15])
    pages["data/Cut.txt"] = (
        f"{sentences('cut')}\nIn the book it is said that {brief.lower()}, as every child knows by now.\n"
    )
    pages["data/Copy.txt"] = pages["data/Thing 3.txt"]
    pages["data/Autre.txt"] = (
        "Le moulin du village est vieux et la rivière est belle au printemps comme en hiver. " * 12
    )
    pages["data/Thing 5.txt"] += f"{sentences('paragraph that only this revision has', 22)}\n"
    commit(mirror, "a/pages", pages)
    commit(mirror, "a/core", {"dump/5.txt": f"5,\nThing5,\n{sentences('thing 5')} Thing 5.\n"})
    sources, wikipedia = recipe.sources, recipe.wikipedia
    listed = [
        sources.Source("core", "encyclopedia", "a/core", "HEAD", sources.WIKIPEDIA, wikipedia.core_articles),
        sources.Source(
            "edit_pages",
            "encyclopedia",
            "a/pages",
            "HEAD",
            sources.WIKIPEDIA,
            wikipedia.browser_pages,
            revisions=True,
        ),
    ]
    for module in (recipe.collect, recipe.attribution):
        monkeypatch.setattr(module, "SOURCES", listed)
    write_evaluation(tmp_path / "eval")
    text = tmp_path / "text"
    run("collect", "encyclopedia", "--mirror", mirror, "--eval", tmp_path / "eval", "-o", text)
    report = json.loads((text / "encyclopedia.json").read_text())
    counts = report["sources"]["edit_pages"]
    assert (
        counts["leak wikitext-test"]
        == counts["duplicate"]
        == counts["other language"]
        == counts["title"]
        == 1
    )
    assert [leak["title"] for leak in report["leaks"]] == ["Lamp"]
    kept = {
        json.loads(line)["title"]: json.loads(line)["text"] for line in (text / "edit_pages.jsonl").open()
    }
    assert len(kept) == counts["kept"] == 60
    assert kept["Cut"] == f"= Cut =\n\n{sentences('cut')}"
    (revised,) = [json.loads(line) for line in (text / "revised.jsonl").open()]
    assert revised["text"] == f"= Thing 5 =\n\n{sentences('paragraph that only this revision has', 22)}"

    files = [text / "edit_pages.jsonl", text / "revised.jsonl"]
    run("leaks", *files, "--eval", tmp_path / "eval", "--workers", "1", "-o", tmp_path / "leaks.json")
    leaks = json.loads((tmp_path / "leaks.json").read_text())
    assert leaks["edit_pages.jsonl"] == {"shared by": {"documents": 60}, "most runs": {}, "over": []}
    (tmp_path / "leak.jsonl").write_text(json.dumps({"title": "Lamp", "text": f"{sentences('x')}\n{SECRET}"}))
    run(
        "leaks",
        tmp_path / "leak.jsonl",
        "--eval",
        tmp_path / "eval",
        "--workers",
        "1",
        "-o",
        tmp_path / "leaks.json",
    )
    (found,) = json.loads((tmp_path / "leaks.json").read_text()).values()
    assert found["shared by"] == {"documents": 1, "wikitext-test": 1}
    assert found["most runs"] == {"wikitext-test": 11}
    assert found["over"] == ["Lamp"]

    monkeypatch.setattr(recipe.mix, "PIECE", 10_000)
    monkeypatch.setattr(recipe.mix, "HELD_OUT", 10)
    run("mix", text, "--workers", "1", "-o", tmp_path / "pieces")
    pieces = sorted((tmp_path / "pieces").glob("mix-*.jsonl.xz"))
    assert len(pieces) > 3
    mixed = [
        [json.loads(line)["title"] for line in lzma.decompress(piece.read_bytes()).splitlines()]
        for piece in pieces
    ]
    held_out = [json.loads(line)["title"] for line in (tmp_path / "pieces" / "heldout.jsonl").open()]
    assert held_out
    assert sorted([*held_out, *(title for piece in mixed for title in piece)]) == sorted(
        [*kept, "Thing 5", "Thing 5"]
    )
    assert any(piece != sorted(piece) for piece in mixed)
    assert max(map(len, mixed)) < 40  # no piece has most of them
    first = [piece.read_bytes() for piece in pieces]
    run("mix", text, "--workers", "1", "-o", tmp_path / "again")
    assert [piece.read_bytes() for piece in sorted((tmp_path / "again").glob("mix-*.jsonl.xz"))] == first

    run("attribution", text, "-o", tmp_path / "ATTRIBUTION.txt.gz")
    attribution = gzip.decompress((tmp_path / "ATTRIBUTION.txt.gz").read_bytes()).decode()
    assert "https://github.com/a/pages@HEAD. CC BY-SA 3.0" in attribution
    assert "\nThing 59\n" in attribution
    capsys.readouterr()


def test_every_source_names_its_license_and_commit(recipe: SimpleNamespace) -> None:
    assert all(source.license and len(source.commit) >= 8 for source in recipe.sources.SOURCES)
    assert {source.group for source in recipe.sources.SOURCES} == set(recipe.collect.FIRST)
