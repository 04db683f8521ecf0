"""Lesson 9: the parameters, counted."""

from glassgpt.course.exercise import Exercise, Mistake


def embedding_parameters(vocab_size, n_positions, n_embd):
    return vocab_size * n_embd + n_positions * n_embd


def attention_parameters(n_embd):
    qkv = n_embd * 3 * n_embd + 3 * n_embd  # a matrix and a bias
    projection = n_embd * n_embd + n_embd
    return qkv + projection


def mlp_parameters(n_embd):
    up = n_embd * 4 * n_embd + 4 * n_embd
    down = 4 * n_embd * n_embd + n_embd
    return up + down


def block_parameters(n_embd):
    norms = 2 * 2 * n_embd  # two of them, each with a weight and a bias
    return norms + attention_parameters(n_embd) + mlp_parameters(n_embd)


def model_parameters(n_layer, n_embd, vocab_size, n_positions):
    final_norm = 2 * n_embd
    return embedding_parameters(vocab_size, n_positions, n_embd) + n_layer * block_parameters(n_embd) + final_norm


WIDTHS = (768, 128, 1600, 7)

EXERCISES = [
    Exercise(
        name="embedding_parameters",
        lesson=9,
        task="Count the numbers in the two embedding tables: one row for each token, one row for each position.",
        solution=embedding_parameters,
        inputs=lambda rng: [(50257, 1024, 768), (16384, 1024, 128), (10, 4, 3)],
        hints=("A table with n rows of width C has n C numbers.", "Two tables: vocab_size rows, and n_positions rows."),
        mistakes=(
            Mistake(lambda v, p, c: v * c, "The positions are missing: they have a table of their own."),
            Mistake(lambda v, p, c: p * c, "The tokens are missing: they have the larger table."),
            Mistake(
                lambda v, p, c: v * p * c,
                "The tables are multiplied. A token's row is the same at every position: add the tables.",
            ),
            Mistake(
                lambda v, p, c: 2 * v * c + p * c,
                "The token table is counted twice. The head uses the same table again; that costs nothing.",
            ),
            Mistake(lambda v, p, c: v + p + c, "The sizes are added. A table has rows times width numbers."),
            Mistake(lambda v, p, c: (v + 1) * c + (p + 1) * c, "There are no biases here: a table has only its rows."),
            Mistake(lambda v, p, c: v * c + p, "A position has a whole row of n_embd numbers, not one number."),
            Mistake(
                lambda vocab_size, n_positions, n_embd: vocab_size + n_positions,
                "These are the rows. Each of them has n_embd numbers.",
            ),
        ),
    ),
    Exercise(
        name="attention_parameters",
        lesson=9,
        task="Count the numbers of one attention: c_attn (queries, keys, values) and c_proj, with their biases.",
        solution=attention_parameters,
        inputs=lambda rng: [(n,) for n in WIDTHS],
        hints=(
            "c_attn goes from C to 3 C: a matrix (C, 3C) and 3C biases.",
            "c_proj goes from C to C: a matrix (C, C) and C biases. The number of heads does not matter.",
        ),
        mistakes=(
            Mistake(lambda c: 4 * c * c, "The biases are missing: one for each output, 3C and C."),
            Mistake(lambda c: 3 * c * c + 3 * c, "c_proj is missing: it brings the merged heads back to the stream."),
            Mistake(
                lambda c: 2 * (c * c + c),
                "Queries, keys and values have C outputs each: c_attn goes to 3C, not to C.",
            ),
            Mistake(lambda c: 4 * c * c + c, "The bias of c_attn is missing: 3C numbers."),
            Mistake(lambda c: 4 * c * c + 3 * c, "The bias of c_proj is missing: C numbers."),
            Mistake(lambda c: 4 * c * c + 2 * c, "The bias of c_attn has 3C numbers, one for each of its outputs."),
            Mistake(
                lambda c: 12 * (4 * c * c + 4 * c),
                "The heads divide the width among themselves. There is one matrix for all of them.",
            ),
            Mistake(lambda c: 6 * c * c + 4 * c, "c_proj goes from C to C: the three thirds are one again by then."),
        ),
    ),
    Exercise(
        name="mlp_parameters",
        lesson=9,
        task="Count the numbers of one MLP: c_fc, four times as wide, and c_proj, with their biases.",
        solution=mlp_parameters,
        inputs=lambda rng: [(n,) for n in WIDTHS],
        hints=(
            "c_fc goes from C to 4 C. How many biases does it have? One for each OUTPUT.",
            "c_proj goes from 4 C to C, with C biases.",
        ),
        mistakes=(
            Mistake(lambda c: 8 * c * c, "The biases are missing: 4C for c_fc, C for c_proj."),
            Mistake(
                lambda c: 8 * c * c + 2 * c,
                "c_fc has 4C outputs, so it has 4C biases. (This is the slip in the article's table.)",
            ),
            Mistake(lambda c: 4 * c * c + 4 * c, "c_proj is missing: back from 4C to C."),
            Mistake(lambda c: 4 * c * c + c, "c_fc is missing: from C to 4C."),
            Mistake(lambda c: 2 * (c * c + c), "The inside of the MLP is four times as wide as the stream: 4C, not C."),
            Mistake(lambda c: 8 * c * c + 8 * c, "c_proj has C outputs, so it has C biases, not 4C."),
            Mistake(lambda c: 8 * c * c + 4 * c, "The bias of c_proj is missing: C numbers."),
            Mistake(lambda c: 8 * c * c + c, "The bias of c_fc is missing: 4C numbers."),
            Mistake(
                lambda n_embd: 4 * n_embd**2 + 5 * n_embd,
                "One matrix is missing. There are two, up to 4C and down again.",
            ),
        ),
    ),
    Exercise(
        name="block_parameters",
        lesson=9,
        task="Count the numbers of one block: two LayerNorms, the attention and the MLP.",
        solution=block_parameters,
        inputs=lambda rng: [(n,) for n in WIDTHS],
        hints=(
            "You have attention_parameters and mlp_parameters.",
            "A LayerNorm has a weight and a bias, each C numbers. A block has two of them.",
        ),
        mistakes=(
            Mistake(lambda c: block_parameters(c) - 4 * c, "The two LayerNorms are missing."),
            Mistake(lambda c: block_parameters(c) - 2 * c, "One LayerNorm's share is missing: there are two, of 2C each."),
            Mistake(lambda c: mlp_parameters(c) + 4 * c, "The attention is missing."),
            Mistake(lambda c: attention_parameters(c) + 4 * c, "The MLP is missing."),
            Mistake(lambda c: 12 * c * c, "Only the matrices are counted. Add the biases and the two LayerNorms."),
            Mistake(
                lambda c: block_parameters(c) - 4 * c + 4,
                "A LayerNorm has a weight and a bias for each of the C places, not one for all.",
            ),
            Mistake(
                lambda c: attention_parameters(c) * 2 + mlp_parameters(c) + 4 * c,
                "The attention is counted twice. A decoder's block has one.",
            ),
            Mistake(lambda c: block_parameters(c) + 2 * c, "A block has two LayerNorms. The final one is outside."),
        ),
    ),
    Exercise(
        name="model_parameters",
        lesson=9,
        task="Count all numbers of a GPT-2: embeddings, n_layer blocks, and the final LayerNorm.",
        solution=model_parameters,
        inputs=lambda rng: [(12, 768, 50257, 1024), (5, 128, 16384, 1024), (48, 1600, 50257, 1024), (1, 4, 5, 3)],
        hints=(
            "You have embedding_parameters and block_parameters.",
            "The head adds nothing: it uses the token table again. What stands between the last block and the head?",
        ),
        mistakes=(
            Mistake(
                lambda n, c, v, p: model_parameters(n, c, v, p) - 2 * c,
                "The final LayerNorm is missing: 2C numbers. (It is missing in the article's table, too.)",
            ),
            Mistake(
                lambda n, c, v, p: model_parameters(n, c, v, p) + v * c,
                "The head is counted as a table of its own. It is the token table again.",
            ),
            Mistake(
                lambda n, c, v, p: model_parameters(1, c, v, p),
                "Only one block is counted. There are n_layer of them, each with its own numbers.",
            ),
            Mistake(
                lambda n, c, v, p: n * block_parameters(c) + 2 * c,
                "The embeddings are missing.",
            ),
            Mistake(
                lambda n, c, v, p: model_parameters(n, c, v, p) - p * c,
                "The position table is missing.",
            ),
            Mistake(
                lambda n, c, v, p: n * (embedding_parameters(v, p, c) + block_parameters(c)) + 2 * c,
                "The embeddings are counted for every block. They stand once, below the first one.",
            ),
            Mistake(
                lambda n, c, v, p: model_parameters(n, c, v, p) + 2 * c * (n - 1),
                "The final LayerNorm is counted for every block. It stands once, above the last one.",
            ),
            Mistake(
                lambda n, c, v, p: model_parameters(n, c, v, p) - c,
                "The final LayerNorm has a weight and a bias. One of them is missing.",
            ),
        ),
    ),
]
