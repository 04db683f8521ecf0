"""Published results, shown next to ours, in the order of the four published sizes."""

from __future__ import annotations

SIZES = ("117M", "345M", "762M", "1542M")  # as the paper calls them

Figures = tuple[float | None, float | None, float | None, float | None]

# Table 3 of "Language Models are Unsupervised Multitask Learners" (Radford et al., 2019). Accuracies in %.
PAPER: dict[str, Figures] = {
    "lambada.perplexity": (35.13, 15.60, 10.87, 8.63),
    "lambada.accuracy": (45.99, 55.48, 60.12, 63.24),
    "cbt-cn.accuracy": (87.65, 92.35, 93.45, 93.30),
    "cbt-ne.accuracy": (83.4, 87.1, 88.0, 89.05),
    "wikitext-2.perplexity": (29.41, 22.76, 19.93, 18.34),
    "ptb.perplexity": (65.85, 47.33, 40.31, 35.76),
    "enwik8.bits_per_byte": (1.16, 1.01, 0.97, 0.93),
    "text8.bits_per_byte": (1.17, 1.06, 1.02, 0.98),
    "wikitext-103.perplexity": (37.50, 26.37, 22.05, 17.48),
    "1bw.perplexity": (75.20, 55.72, 44.575, 42.16),
}

# Reproductions by others with the published weights, lm-evaluation-harness and the code of the `transformers`
# documentation. A key with a colon applies to protocols with that ending.
REPRODUCED: dict[str, Figures] = {
    "lambada.accuracy_any_word": (None, None, None, 52.66),  # in the paper's text
    "lambada_openai.perplexity": (40.06, None, None, None),
    "lambada_openai.acc": (32.56, None, None, None),
    "hellaswag.acc_norm": (31.14, None, None, None),
    "wikitext.word_perplexity": (37.37, None, None, None),
    "wikitext-2.token_perplexity:stride 1024": (29.94, None, 19.44, None),
    "wikitext-2.token_perplexity:stride 512": (None, None, 16.44, None),
}


def published(metric: str, protocol: str) -> Figures | None:
    for key, figures in {**PAPER, **REPRODUCED}.items():
        name, _, ending = key.partition(":")
        if name == metric and protocol.endswith(ending):
            return figures
    return None
