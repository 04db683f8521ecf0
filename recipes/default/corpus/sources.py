"""Every source: repository, commit, license, reader. Of two copies of a text the earlier source's stays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from corpus import books, modern, reference, wikipedia
from corpus.repository import Repository

WIKIPEDIA = "CC BY-SA 3.0, by Wikipedia contributors"
KNOWLEDGE_PROJECT = "CC BY 4.0, Nineteenth-Century Knowledge Project"
GOVERNMENT = "CC0 or public domain (United States government)"
GUTENBERG = "public domain in the United States (Project Gutenberg)"


class Source(NamedTuple):
    name: str
    group: str  # encyclopedia or books: what is compared with each other
    repository: str
    commit: str
    license: str
    read: Callable[[Repository], Iterator[tuple[str, str]]]
    least: int = 500  # characters of a document
    revisions: bool = False  # paragraphs that are new against another revision of the article are kept
    titles: bool = True  # a title is one article, whatever the source


SOURCES = [
    Source("wikiquality", "encyclopedia", "vinhqdang/wikipedia_analysis",
           "a8a849c8", WIKIPEDIA, wikipedia.raw_wikitext, revisions=True),
    Source("chinapedia", "encyclopedia", "chinapedia/wikipedia.abstract.en",
           "4f3e897d", WIKIPEDIA, wikipedia.pandoc, revisions=True),
    Source("edit_pages", "encyclopedia", "cabosanlucas/document_similarity_using_tfidf",
           "566d5786", WIKIPEDIA, wikipedia.browser_pages, revisions=True),
    Source("core", "encyclopedia", "kirito-0512/data",
           "43369287", WIKIPEDIA, wikipedia.core_articles, revisions=True),
    Source("wikivisual", "encyclopedia", "jason-feng/wikiVisual",
           "a28b3d91", WIKIPEDIA, wikipedia.extracted_in_history("text/A")),
    Source("patched", "encyclopedia", "ZhouYii/PatchedDistro",
           "961716d8", WIKIPEDIA, wikipedia.extracted_in_history("data/A")),
    Source("wikitasks", "encyclopedia", "Vibhas-hs-edu/WikiTasks",
           "52b1f163", WIKIPEDIA, wikipedia.extracted_files),
    Source("openings", "encyclopedia", "wenhuchen/WikiTables-WithLinks",
           "dc066e1a", WIKIPEDIA, wikipedia.openings, least=250),
    Source("eb09", "encyclopedia", "TU-plogan/kp-editions",
           "b476dc7a", KNOWLEDGE_PROJECT, reference.britannica("eb09", 8), titles=False),
    Source("eb07", "encyclopedia", "TU-plogan/kp-editions",
           "b476dc7a", KNOWLEDGE_PROJECT, reference.britannica("eb07", 6), titles=False),
    Source("kyoto", "encyclopedia", "japanese-wiki-corpus/japanese-wiki-corpus.github.io",
           "4ed01c4a", "CC BY-SA 3.0, NICT and Wikipedia contributors", reference.kyoto),
    Source("frus", "encyclopedia", "HistoryAtState/frus",
           "d3dff150", "public domain (United States government)", reference.frus, titles=False),
    Source("elife", "encyclopedia", "elifesciences/elife-article-xml",
           "72034a54", "CC BY 3.0 and 4.0 or CC0, the authors, eLife", modern.elife, titles=False),
    Source("guides", "encyclopedia", "GSA/digitalgov.gov",
           "49795832", GOVERNMENT, modern.markdown("content/news", "content/guides", "content/resources"),
           titles=False),
    Source("guides", "encyclopedia", "18F/18f.gsa.gov",
           "0a55c75e", GOVERNMENT, modern.markdown("content/posts", "content/pages"), titles=False),
    Source("guides", "encyclopedia", "18F/handbook",
           "1e495563", GOVERNMENT, modern.markdown("pages"), titles=False),
    Source("guides", "encyclopedia", "GSA/plainlanguage.gov",
           "43230773", GOVERNMENT, modern.markdown("_pages"), titles=False),
    Source("guides", "encyclopedia", "department-of-veterans-affairs/vagov-content",
           "5d2beb69", GOVERNMENT, modern.markdown("pages/", history=True), titles=False),
    Source("recipes", "encyclopedia", "ronaldl29/public-domain-recipes",
           "61b488ee", "public domain (Unlicense)", modern.markdown("content"), titles=False, least=250),
    Source("recipes", "encyclopedia", "LukeSmithxyz/based.cooking",
           "2d8642ec", "public domain (Unlicense)", modern.markdown("content"), titles=False, least=250),
    Source("zeta", "books", "Zeta-and-Company/Gutenberg_subset", "af29746a", GUTENBERG, books.zeta),
    Source("cs_fiction", "books", "legobridge/copyshield-llm", "4889c5de", GUTENBERG, books.copyshield(True)),
    Source("sfgram", "books", "nschaetti/SFGram-dataset", "77727e5a", GUTENBERG, books.sfgram),
    Source("uga", "books", "rcdm-uga/Gutenberg_Text", "a0b16d35", GUTENBERG, books.by_author),
    Source("cs_prose", "books", "legobridge/copyshield-llm", "4889c5de", GUTENBERG, books.copyshield(False)),
]  # fmt: skip

# The newest commits at which the books still were CC BY 4.0. Later ones are BY-NC-SA: not free enough.
OPENSTAX = {
    "american-government": "4554ab5e147f84e161b6dc720654c1cc87ad21ff",
    "anatomy-physiology": "60d362eb253096cb9b4c2e169ce8cb8b688af426",
    "astronomy": "0c021fb283a7dccabe09b08f49dacdb5f50a20b5",
    "biology-bundle": "6a02bc26a2e72702c1f96c41f2d98026b8127c4f",
    "business-ethics": "cc765356d92967e9d8a8dc2a0f8d9c07f336be00",
    "chemistry-bundle": "ac55ea98e6240f5d18e81b8d975f1acd6c969f65",
    "college-physics-bundle": "e7d2174b091f4ee0f4c1e67e7ee3156bfc3ed626",
    "entrepreneurship": "586f4c203d48ebbdfdcd94ecbb3ca1d9899988ed",
    "introduction-anthropology": "29de033cce85a687496ed2610ec7c10e83faed85",
    "introduction-business": "dc06a6041098ae67ec969bbb0bc2cd53f4814b3b",
    "introduction-philosophy": "f8e43da05b2f4d9700b363e0f2a236cbd903f6e4",
    "introduction-political-science": "8bc3842357161ce2e3958ccac902e6c1a302531f",
    "introduction-sociology": "33361f91a372cb19c986f217a8bf7d2da8355229",
    "microbiology": "195e304d43b988de2b33bd798e59c030a3d84902",
    "principles-marketing": "f5df2ee448b77164d786ede39a5050efcdb89bc7",
    "psychology": "c1b218bc1552e452c7be4d5da60c52a9ae49af0d",
    "us-history": "b9b1d7e5a432ccbbde20e72baa9f71c1ba27413c",
    "world-history": "c21881a4efaa1b6a5db5171a484c572d3bfa7000",
    "writing-guide": "33df4b0b714cf2b831050cb05f8a06ec3e3e9707",
}
SOURCES[-15:-15] = [
    Source("openstax", "encyclopedia", f"openstax/osbooks-{book}", commit,
           "CC BY 4.0, OpenStax, Rice University", reference.openstax, titles=False)
    for book, commit in OPENSTAX.items()
]  # fmt: skip
