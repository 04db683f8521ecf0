"""A few documents of every data set, written for these tests in the formats in which those are published."""

from __future__ import annotations

import json
from pathlib import Path


def lines(*records: dict) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


LAMBADA = lines(
    {"text": 'The cook put salt in the soup.\n\n"Too much," said the guest, and left the soup'},
    {"text": "A short one here"},
    {"text": "Nobody came to the old mill, for there was no road, only the river that drove the mill"},
    {"text": "She said that he was the one who had been there before"},
)
WIKITEXT = """ 
 = Stone bridge = 
 
 The stone bridge , built 1 @,@ 204 years ago , is well @-@ known . 
 It " never fell " ( so they say ) ; 3 @.@ 5 km of road lead to it . 
 
 = = Use = = 
 
 It 's the readers ' favourite bridge , and they do n't pay $ 5 for it . The <unk> toll was 10 % . 
 
 = Wooden bridge = 
 
 A bridge of wood burns : it did . 
 
"""
PTB = """ the company said it does n't expect a loss of $ N million this year 
 mr. <unk> 's shares rose N % on the news 
 it is n't clear what the investors ' plan was 
"""
ONE_BILLION = """The minister said , " We will not pay . "
He was n't there on Monday ; his car was .
"""
TEXT8 = " anarchism originated as a term of abuse first used against early working class radicals"
ENWIK8 = (
    "<page>\n  <title>Bär</title>\n  <text>'''Bär''' is [[German]] for &quot;bear&quot;.</text>\n</page>\n"
)


def cbt(responses: tuple[str, str]) -> str:
    story = [
        f"{i} The miller 's {animal} went to the market , and he did n't come back ."
        for i, animal in enumerate(["cat", "dog", "hen", "cow"] * 5, start=1)
    ]
    choices = "cat|dog|hen|cow|mill|road|sack|king|day|boy"
    first = f"21 `` The XXXXX is ours , '' said the miller .\t{responses[0]}\t\t{choices}"
    second = f"21 XXXXX -LRB- and the cow -RRB- slept .\t{responses[1]}\t\t{choices}"
    return "\n".join([*story, first, "", *story[:20], second, ""]) + "\n"


HELLASWAG = lines(
    {
        "query": "Baking: A woman stands in a kitchen. she",
        "label": 1,
        "endings": ["rides a horse.", "puts [step] flour in a bowl.", "is a boat.", "sings, then leaves."],
    },
    {
        "query": "Health: How to sleep. Close the window.",
        "label": 0,
        "endings": ["Then lie down.", "Then run.", "Eat a stone and a second stone.", "No."],
    },
)
PIQA = lines(
    {
        "query": "Question: How do I open a jar?\n",
        "choices": ["Turn the lid.", "Turn the jar into a lid."],
        "gold": 0,
    },
    {"query": "Question: dresser\n", "choices": ["close it", "eat it up"], "gold": 1},
)
ARC = lines(
    {"query": "Question: Which is hot?", "choices": ["ice", "fire", "a cold stone", "snow"], "gold": 1},
    {"query": "Question: Which of these is a plant?", "choices": ["oak", "iron ore"], "gold": 0},
)
WINOGRANDE = lines(
    {
        "context_options": ["Sarah lent Maria a coat as Sarah", "Sarah lent Maria a coat as Maria"],
        "continuation": "was cold.",
        "gold": 1,
    },
    {
        "context_options": [
            "The box is not in the case as the box",
            "The box is not in the case as the case",
        ],
        "continuation": "is too small.",
        "gold": 1,
    },
)
WSC = lines(
    {
        "context_options": [
            "The cup fell off the table since the cup",
            "The cup fell off the table since the table",
        ],
        "continuation": "shook.",
        "gold": 1,
    },
    {
        "context_options": ["Ann thanked Eve for Ann's", "Ann thanked Eve for Eve's"],
        "continuation": ", as she said, help.",
        "gold": 1,
    },
)
FILES = {
    "lambada_test.jsonl": LAMBADA,
    "wikitext-2.test.tokens": WIKITEXT,
    "wikitext-2-raw.test": WIKITEXT.replace("<unk>", "old"),
    "wikitext-103.test.tokens": WIKITEXT.replace("10", "20"),
    "ptb.test.txt": PTB,
    "enwik8": ENWIK8,
    "text8": TEXT8,
    "news.en.heldout-00000-of-00050": ONE_BILLION,
    "cbtest_CN_test_2500ex.txt": cbt(("mill", "dog")),
    "cbtest_NE_test_2500ex.txt": cbt(("king", "boy")),
    "hellaswag_val.jsonl": HELLASWAG,
    "piqa.jsonl": PIQA,
    "arc_easy.jsonl": ARC,
    "winogrande.jsonl": WINOGRANDE,
    "winograd_wsc.jsonl": WSC,
}


def write_all(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in FILES.items():
        (folder / name).write_text(text, "utf-8")
    return folder
