"""What counting words reaches on SST-2: logistic regression on words and pairs of words (scikit-learn).

python recipes/classification/bag_of_words.py SHARED/classification
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

sys.path.insert(0, str(Path(__file__).parents[1]))
from classification.prepare import FILES, read

WORD = r"[\w']+"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data", type=Path)
    given = parser.parse_args()
    sets = {name: tuple(zip(*read(given.data / file), strict=True)) for name, file in FILES.items()}
    results = {}
    words = CountVectorizer(token_pattern=WORD, binary=True)
    pairs = TfidfVectorizer(token_pattern=WORD, ngram_range=(1, 2), sublinear_tf=True)
    for name, vectors in (("words", words), ("words and pairs, tf-idf", pairs)):
        model = make_pipeline(vectors, LogisticRegression(max_iter=300, C=3.0))
        model.fit(*sets["train"])
        results[name] = {split: round(model.score(*sets[split]), 4) for split in ("valid", "test")}
        print(f"{name:26} dev {results[name]['valid']:.1%}   test {results[name]['test']:.1%}")
    print(json.dumps(results))


if __name__ == "__main__":
    main()
