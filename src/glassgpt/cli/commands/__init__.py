"""The commands, in the order a newcomer meets them, with examples. Each is a module or a folder here with one
typed function, `command`: its signature is the command line (`cli/parser/`), its return value the exit code.
A module is imported only when its command runs, so that `--help` and `--version` start quickly.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Command:
    summary: str
    examples: tuple[str, ...]  # `glassgpt --help` shows the first


COMMANDS = {
    "generate": Command(
        "generate text from a prompt",
        (
            'glassgpt generate "A robot must obey"',
            'glassgpt generate "Once upon a time" --samples 3 --seed 7 --temperature 1',
            'glassgpt generate "The sea" --model gpt2-xl --max-new-tokens 200 --top-k none --top-p 0.9',
            "glassgpt generate - --json < prompt.txt",
        ),
    ),
    "next": Command(
        "show the most likely next tokens; pick one and continue",
        (
            'glassgpt next "A robot must obey the"',
            'glassgpt next "A robot must obey the" -k 20',
            'glassgpt next "The capital of France is" --json --model gpt2',
        ),
    ),
    "fill": Command(
        "fill the blanks of a text",
        (
            'glassgpt fill "A robot must ___ the orders"',
            'glassgpt fill "The ___ rose over the ___." --model runs/bidirectional -k 3 --json',
        ),
    ),
    "explore": Command(
        "see inside the model, in the browser",
        (
            'glassgpt explore "A robot must obey"',
            'glassgpt explore "The capital of France is" --model gpt2 --compare gpt2-medium',
            "glassgpt explore --model runs/mine --port 9000 --no-browser",
        ),
    ),
    "course": Command(
        "learn how GPT-2 works, in twelve lessons",
        (
            "glassgpt course",
            "glassgpt course 1",
            "glassgpt course 3 --to lessons/ --no-open",
        ),
    ),
    "tokens": Command(
        "show how text is tokenized, merge by merge",
        (
            'glassgpt tokens "A robot must obey"',
            'glassgpt tokens "unbelievable" --merges',
            "glassgpt tokens - --ids < book.txt",
        ),
    ),
    "info": Command(
        "count a model's parameters, tensor by tensor",
        ("glassgpt info gpt2", "glassgpt info gpt2 --illustrated", "glassgpt info path/to/model --json"),
    ),
    "score": Command(
        "measure how surprising each word of a text is",
        (
            "glassgpt score story.txt",
            "glassgpt score sentences.txt --lines --by sentence",
            "glassgpt score stimuli.jsonl --by word --model gpt2 > surprisal.tsv",
        ),
    ),
    "heads": Command(
        "find induction heads and other kinds of attention heads",
        ("glassgpt heads", "glassgpt heads gpt2 -k 3", "glassgpt heads runs/mine --text story.txt --json"),
    ),
    "atlas": Command(
        "show what every head and neuron does over a corpus",
        (
            "glassgpt atlas default --data texts/ -o atlas/ --tokens 1000000",
            "glassgpt atlas -o atlas/ --neuron 3.17",
            "glassgpt atlas -o atlas/ --head 6.7 -k 10",
        ),
    ),
    "site": Command(
        "write the Explorer as a folder that needs no server",
        (
            "glassgpt site -o mysite",
            'glassgpt site -o mysite --model tiny --text "A robot must obey"',
            "glassgpt site -o mysite --model runs/mine --model default",
        ),
    ),
    "translate": Command(
        "translate English into French, or French into English",
        (
            'glassgpt translate "Where is the station?" --to fr',
            "glassgpt translate - --to en < lettre.txt",
            "glassgpt translate --file sentences.jsonl --to fr --beams 4 --json",
        ),
    ),
    "summarize": Command(
        "summarize a text",
        (
            "glassgpt summarize article.txt",
            "glassgpt summarize article.txt --sentences 5 --json",
            "glassgpt summarize article.txt --zero-shot --model gpt2-xl --seed 1",
            "glassgpt summarize emails.jsonl --model subject-tuned --json",
        ),
    ),
    "classify": Command(
        "classify a text with a tuned model, or zero-shot",
        (
            'glassgpt classify "A charming journey." --labels good,bad',
            'glassgpt classify "Dull." --model reviews-tuned',
            "glassgpt classify --file reviews.tsv --model reviews-tuned --json",
        ),
    ),
    "serve": Command(
        "serve completions to the clients of OpenAI's API",
        (
            "glassgpt serve",
            "glassgpt serve --model gpt2 --model mine=runs/mine --port 9000",
            "glassgpt serve --model default --lora news=news-adapter --lora tales=tales-adapter",
            "glassgpt serve --host 0.0.0.0 --api-key secret --max-batch-size 32",
        ),
    ),
    "mcp": Command(
        "offer a model to an assistant as tools (MCP)",
        ("glassgpt mcp", "glassgpt mcp --model gpt2"),
    ),
    "convert": Command(
        "convert a model to another file format",
        (
            "glassgpt convert gpt2 gpt2.gguf",
            "glassgpt convert nanogpt/out/ckpt.pt my-model",
            "glassgpt convert my-model my-model.bin --format llmc --dtype bfloat16",
            "glassgpt convert gpt2 gpt2-int4 --dtype int4",
            "glassgpt convert default ollama/model.gguf --modelfile",
        ),
    ),
    "push": Command(
        "upload a model to the Hugging Face hub",
        (
            "glassgpt push my-model me/my-gpt2 --dry-run",
            "glassgpt push my-tuned me/my-gpt2 --license mit --private",
        ),
    ),
    "prepare": Command(
        "tokenize text for training",
        (
            "glassgpt prepare corpus/ -o shards/",
            "glassgpt prepare 'books/*.jsonl.xz' notes.md -o shards/ --tokenizer gpt2",
            "glassgpt prepare input.txt -o shards/ --tokenizer chars --val-fraction 0.1",
            "glassgpt prepare corpus/ -o shards/ --tokenizer bpe --vocab-size 8192",
        ),
    ),
    "train": Command(
        "train a model on tokenized data",
        (
            "glassgpt train --data shards/ --out runs/mine --steps 2000",
            "glassgpt train --out runs/mine --resume",
            "glassgpt train --data shards/ --out runs/gpt2 --steps 9000 --shape gpt2 --recipe gpt2 --dry-run",
            "glassgpt train --data shards/ --out runs/on --steps 300 --init-from default --lr 3e-4",
        ),
    ),
    "tune": Command(
        "fine-tune a model on your own text",
        (
            "glassgpt tune my.txt",
            "glassgpt tune letters/ diary.md --out runs/me --minutes 5",
            "glassgpt tune my.txt --model gpt2 --lora",
            "glassgpt tune my.txt --dry-run",
        ),
    ),
    "eval": Command(
        "evaluate a model on the GPT-2 paper's benchmarks and others",
        (
            "glassgpt eval default --suite paper --data data/",
            "glassgpt eval gpt2 --suite harness --json",
            "glassgpt eval default book.txt --suite perplexity --stride 512",
            "glassgpt eval gpt2 gpt2-q4.gguf --suite wikitext-2 --limit 50",
            "glassgpt eval gpt2 --tasks triviaqa,drop --limit 100",
        ),
    ),
    "music": Command(
        "make piano music and hear it",
        (
            "glassgpt music sample -o a.mid --seconds 30 --seed 1",
            "glassgpt music continue opening.mid -o out.mid --seconds 20",
            "glassgpt music accompany melody.mid -o song.mid",
            "glassgpt music render a.mid -o a.wav",
            "glassgpt music roll a.mid -o a.svg",
            "glassgpt music prepare midi/ -o shards/ --tempi 5",
        ),
    ),
    "verify": Command(
        "check results on this machine against a float32 reference",
        (
            "glassgpt verify",
            "glassgpt verify gpt2 --device cpu --dtype float32",
            "glassgpt verify my-model --json",
        ),
    ),
    "bench": Command(
        "measure how fast a model is on this machine",
        ("glassgpt bench", "glassgpt bench gpt2 --dtype int8 --json", "glassgpt bench tiny --transformers"),
    ),
    "doctor": Command(
        "say what is installed, which engine computes, and what is missing",
        ("glassgpt doctor", "glassgpt doctor --json"),
    ),
    "completion": Command(
        "print a shell completion script",
        (
            'eval "$(glassgpt completion bash)"',
            "glassgpt completion bash > ~/.local/share/bash-completion/completions/glassgpt",
            'glassgpt completion zsh > "${fpath[1]}/_glassgpt"',
            "glassgpt completion fish > ~/.config/fish/completions/glassgpt.fish",
            "glassgpt completion man > ~/.local/share/man/man1/glassgpt.1",
        ),
    ),
}
