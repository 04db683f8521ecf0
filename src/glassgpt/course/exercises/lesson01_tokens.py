"""Lesson 1: text, bytes, pairs, merges."""

from collections import Counter

from glassgpt.course.exercise import Exercise, Mistake

TEXTS = ("low lower lowest", "aaaa", "abababab", "a café, naïve façade", "the cat and the hat", "mississippi")


def text_bytes(text):
    return list(text.encode("utf-8"))


def count_pairs(ids):
    counts = {}
    for pair in zip(ids, ids[1:]):
        counts[pair] = counts.get(pair, 0) + 1
    return counts


def best_pair(counts):
    return max(counts, key=lambda pair: (counts[pair], [-part for part in pair]))


def merge(ids, pair, new_id):
    out = []
    i = 0
    while i < len(ids):
        if i + 1 < len(ids) and (ids[i], ids[i + 1]) == tuple(pair):
            out.append(new_id)
            i += 2
        else:
            out.append(ids[i])
            i += 1
    return out


def train_bpe(text, n_merges):
    ids = text_bytes(text)
    merges = []
    for new_id in range(256, 256 + n_merges):
        counts = count_pairs(ids)
        if not counts:
            break
        pair = best_pair(counts)
        ids = merge(ids, pair, new_id)
        merges.append(pair)
    return merges


def encode(text, merges):
    ids = text_bytes(text)
    for number, pair in enumerate(merges):
        ids = merge(ids, pair, 256 + number)
    return ids


def decode(ids, merges):
    pieces = [bytes([byte]) for byte in range(256)]
    for left, right in merges:
        pieces.append(pieces[left] + pieces[right])
    return b"".join(pieces[i] for i in ids).decode("utf-8")


def text_inputs(rng):
    return [(text,) for text in (*TEXTS, "", "日本", "x")]


def id_inputs(rng):
    return [(text_bytes(text),) for text in TEXTS] + [([],), ([5],), ([7, 7, 7],)]


def counted_inputs(rng):
    pairs = [count_pairs(text_bytes(text)) for text in TEXTS]
    return [(counts,) for counts in pairs] + [({(9, 1): 3, (2, 5): 3, (2, 4): 3, (200, 7): 1},), ({(1, 2): 1},)]


def merge_inputs(rng):
    made = [(text_bytes(text), best_pair(count_pairs(text_bytes(text))), 256) for text in TEXTS]
    return [*made, ([1, 1, 1, 1, 1], (1, 1), 300), ([1, 2, 3], (2, 3), 256), ([1, 2], (2, 1), 256), ([], (1, 2), 256)]


def train_inputs(rng):
    return [(text, n) for text in TEXTS for n in (1, 4)] + [("ab", 5), ("", 3)]


def encode_inputs(rng):
    return [(other, train_bpe(text, 5)) for text in TEXTS[:4] for other in (text, "lab lower café aaa", "")]


def decode_inputs(rng):
    return [(encode(text, train_bpe(text, n)), train_bpe(text, n)) for text in TEXTS for n in (0, 3, 6)]


def merge_without_skipping(ids, pair, new_id):
    out = list(ids)
    i = 0
    while i + 1 < len(out):
        if (out[i], out[i + 1]) == tuple(pair):
            out[i] = new_id
        i += 1
    return out


def merge_first_only(ids, pair, new_id):
    for i in range(len(ids) - 1):
        if (ids[i], ids[i + 1]) == tuple(pair):
            return [*ids[:i], new_id, *ids[i + 2 :]]
    return list(ids)


def merge_skips_always(ids, pair, new_id):
    out = []
    for i in range(0, len(ids), 2):
        out += [new_id] if tuple(ids[i : i + 2]) == tuple(pair) else list(ids[i : i + 2])
    return out


def merge_from_the_right(ids, pair, new_id):
    return merge(list(ids)[::-1], tuple(pair)[::-1], new_id)[::-1]


def merge_loses_the_last(ids, pair, new_id):
    out = []
    i = 0
    while i + 1 < len(ids):
        if (ids[i], ids[i + 1]) == tuple(pair):
            out.append(new_id)
            i += 2
        else:
            out.append(ids[i])
            i += 1
    return out


def counts_without_overlap(ids):
    return dict(Counter(zip(ids[::2], ids[1::2])))


def train_with(text, n_merges, start=256, counted=count_pairs, chosen=best_pair, again=True):
    ids = text_bytes(text)
    merges = []
    first = counted(ids)
    for new_id in range(start, start + n_merges):
        counts = counted(ids) if again else {pair: n for pair, n in first.items() if pair not in merges}
        if not counts:
            break
        pair = chosen(counts)
        ids = merge(ids, pair, new_id)
        merges.append(pair)
    return merges


def encode_longest_first(text, merges):
    ids = text_bytes(text)
    for number in reversed(range(len(merges))):
        ids = merge(ids, merges[number], 256 + number)
    return ids


def encode_from_zero(text, merges):
    ids = text_bytes(text)
    for number, pair in enumerate(merges):
        ids = merge(ids, pair, number)
    return ids


def rarest(counts):
    return min(counts, key=lambda pair: (counts[pair], pair))


def last_of_equals(counts):
    return max(counts, key=lambda pair: (counts[pair], pair))


def decoded(ids, merges, swap=False, errors=None, most=None):
    pieces = [bytes([byte]) for byte in range(256)]
    for left, right in merges:
        pieces.append(pieces[right] + pieces[left] if swap else pieces[left] + pieces[right])
    if errors == "each":
        return "".join(pieces[i].decode("utf-8", "replace") for i in ids)
    return b"".join(pieces[i] for i in ids if most is None or i < most).decode("utf-8", "replace")


EXERCISES = [
    Exercise(
        "text_bytes", 1, "Return the bytes of a text in UTF-8, as a list of numbers from 0 to 255.",
        text_bytes, text_inputs,
        (
            Mistake(lambda text: [ord(c) for c in text], "These are the characters' Unicode numbers. For é or 日 they are not the bytes: use text.encode(\"utf-8\")."),
            Mistake(lambda text: text.encode("utf-8"), "This is a bytes object: list(...) makes numbers of it."),
            Mistake(lambda text: [text.encode("utf-8")], "This is a list with one bytes object in it: list(...) makes numbers of it."),
            Mistake(lambda text: list(text), "These are characters. text.encode(\"utf-8\") gives the bytes."),
            Mistake(lambda text: list(text.encode("utf-16")), "This is UTF-16, which has two bytes for every letter. GPT-2 uses UTF-8."),
            Mistake(lambda text: list(text.encode("latin-1", "replace")), "This is Latin-1, which has no more than 256 characters. GPT-2 uses UTF-8."),
            Mistake(lambda text: list(text.encode("ascii", "ignore")), "Letters outside ASCII are lost. Encode as UTF-8, which has bytes for all of them."),
            Mistake(lambda text: [hex(b) for b in text.encode("utf-8")], "These are texts such as '0x6c'. list(text.encode(\"utf-8\")) gives the numbers."),
        ),
        ("A str has a method that turns it into bytes: encode.", "list(bytes) is a list of numbers.", 'list(text.encode("utf-8"))'),
    ),
    Exercise(
        "count_pairs", 1, "Count each pair of neighbors in a list: a dict from (left, right) to its number.",
        count_pairs, id_inputs,
        (
            Mistake(counts_without_overlap, "Only every second pair is counted. Neighbors overlap: in [1, 2, 3] they are (1, 2) and (2, 3)."),
            Mistake(lambda ids: dict(Counter(ids)), "This counts single ids. A pair is two neighbors: zip(ids, ids[1:])."),
            Mistake(lambda ids: dict(Counter((b, a) for a, b in zip(ids, ids[1:]))), "The pairs are the wrong way around: (left, right)."),
            Mistake(lambda ids: dict(Counter(tuple(sorted(p)) for p in zip(ids, ids[1:]))), "(1, 2) and (2, 1) are different pairs: do not sort them."),
            Mistake(lambda ids: dict.fromkeys(zip(ids, ids[1:]), 1), "Every pair counts as one. Add one to its number each time it comes."),
            Mistake(lambda ids: dict(Counter(zip(ids[:-1], ids[1:-1]))), "The last pair is missing: go up to the last but one id."),
            Mistake(lambda ids: dict(Counter(zip(ids, ids[1:] + ids[:1]))), "The last id and the first one are no neighbors: a text is not a ring."),
            Mistake(lambda ids: dict(Counter(zip(ids, ids[2:]))), "These are ids two places apart. The neighbor of ids[i] is ids[i + 1]."),
            Mistake(lambda ids: dict(Counter((a, b) for a in ids for b in ids)), "This counts any two ids. Only neighbors make a pair: zip(ids, ids[1:])."),
        ),
        ("zip(ids, ids[1:]) walks over the pairs.", "counts.get(pair, 0) is 0 for a new pair."),
    ),
    Exercise(
        "best_pair", 1, "Return the pair with the highest count; of several, the smallest pair.",
        best_pair, counted_inputs,
        (
            Mistake(lambda counts: max(counts), "This is the largest pair, not the most frequent one: max needs a key."),
            Mistake(lambda counts: min(counts), "This is the smallest pair. The count decides first."),
            Mistake(rarest, "This is the rarest pair: take max instead of min."),
            Mistake(lambda counts: max(counts, key=counts.get), "Where counts are equal this takes the pair that came first in the text. Take the smallest pair, so that the order of the text does not matter."),
            Mistake(last_of_equals, "Where counts are equal this takes the largest pair. Take the smallest."),
            Mistake(lambda counts: max(counts.values()), "This is the count. Return the pair that has it."),
            Mistake(lambda counts: (best_pair(counts), counts[best_pair(counts)]), "Return only the pair, without its count."),
            Mistake(lambda counts: list(counts)[-1], "This is the last pair of the dict."),
            Mistake(lambda counts: list(counts)[0], "This is the first pair of the dict."),
        ),
        ("max(counts, key=...) compares what the key returns.", "A key may be a tuple: first the count, then what decides between equals.", "min(counts, key=lambda pair: (-counts[pair], pair))"),
    ),
    Exercise(
        "merge", 1, "Replace each occurrence of a pair by a new id, from left to right, and return the new list.",
        merge, merge_inputs,
        (
            Mistake(merge_without_skipping, "The right half of the pair is still there. After a merge, skip two ids."),
            Mistake(merge_first_only, "Only the first occurrence is merged. Go on until the end."),
            Mistake(merge_skips_always, "Two ids are skipped even where nothing was merged. Skip one there."),
            Mistake(merge_from_the_right, "It goes from right to left. In 1 1 1 the first two are the pair, not the last two."),
            Mistake(merge_loses_the_last, "The last id is lost when it is not part of a pair. Let the loop run to the end."),
            Mistake(lambda ids, pair, new_id: [new_id if i in pair else i for i in ids], "Every id of the pair is replaced, wherever it is. Only both together, in this order, make the pair."),
            Mistake(lambda ids, pair, new_id: merge(ids, tuple(pair)[::-1], new_id), "The pair is the wrong way around: first the left id, then the right one."),
            Mistake(lambda ids, pair, new_id: merge(ids, pair, len(ids)), "The new id is the third argument."),
            Mistake(lambda ids, pair, new_id: list(ids), "Nothing changes. Is the pair a tuple on both sides of the ==?"),
        ),
        ("A while loop with its own i: add 2 after a merge, 1 otherwise.", "Check that i + 1 is still inside the list.", "if (ids[i], ids[i + 1]) == pair: out.append(new_id); i += 2"),
    ),
    Exercise(
        "train_bpe", 1, "Return the list of merged pairs: n_merges times, merge the best pair into the ids 256, 257 and so on; stop when there is no pair.",
        train_bpe, train_inputs,
        (
            Mistake(lambda text, n: train_with(text, n, start=0), "The new ids begin at 0, which are bytes already. Begin at 256."),
            Mistake(lambda text, n: train_with(text, n, start=255), "The first new id is 255, which is a byte. Begin at 256."),
            Mistake(lambda text, n: train_with(text, n, start=257), "The first new id is 257. Bytes are 0 to 255, so begin at 256."),
            Mistake(lambda text, n: train_with(text, n, again=False), "The pairs of the bytes are counted. A merge makes new pairs: in each round, count those of the merged ids."),
            Mistake(lambda text, n: train_bpe(text, n + 1), "That is one merge too many."),
            Mistake(lambda text, n: train_bpe(text, max(n - 1, 0)), "That is one merge too few."),
            Mistake(lambda text, n: train_with(text, n, chosen=rarest), "Each round merges the rarest pair."),
            Mistake(lambda text, n: encode(text, train_bpe(text, n)), "These are the ids of the text. Return the list of the pairs that were merged."),
            Mistake(lambda text, n: train_bpe(text, n)[::-1], "The order is turned around. The first merge comes first."),
            Mistake(lambda text, n: [], "The list is empty. Append the pair in each round."),
            Mistake(lambda text, n: n * [best_pair(count_pairs(text_bytes(text)))] if len(text) > 1 else [], "The same pair comes every time. Keep what merge returns: ids = merge(ids, pair, new_id)."),
        ),
        ("Use text_bytes, count_pairs, best_pair and merge.", "In each round: count, choose, merge, append the pair to a list.", "An empty dict of counts means that there is nothing left to merge: break."),
    ),
    Exercise(
        "encode", 1, "Return the ids of a text: its bytes, with every merge of the list applied in order.",
        encode, encode_inputs,
        (
            Mistake(encode_longest_first, "The merges are applied from the last to the first. Later merges need the ids that earlier ones make."),
            Mistake(lambda text, merges: text_bytes(text), "These are the bytes. Apply the merges to them."),
            Mistake(lambda text, merges: encode(text, train_bpe(text, len(merges))), "This learns new merges from this text. Apply the given ones."),
            Mistake(lambda text, merges: encode(text, merges[:-1]), "The last merge is missing."),
            Mistake(lambda text, merges: encode(text, merges[:1]), "Only the first merge is applied: `return` comes too early."),
            Mistake(lambda text, merges: [b for n, p in enumerate(merges) for b in merge(text_bytes(text), p, 256 + n)], "Each merge starts from the bytes again. Let each one work on the result of the one before."),
            Mistake(lambda text, merges: [i - 255 if i > 255 else i for i in encode(text, merges)], "The new ids begin at 1. The first merge makes 256."),
            Mistake(lambda text, merges: [i + 1 if i > 255 else i for i in encode(text, merges)], "The new ids begin at 257. The first merge makes 256."),
            Mistake(encode_from_zero, "The new ids begin at 0, which are bytes already. The first merge makes 256."),
        ),
        ("Start with text_bytes(text).", "enumerate(merges) gives the number of each merge; its new id is 256 more."),
    ),
    Exercise(
        "decode", 1, "Return the text of ids: every id above 255 is the bytes of the two ids that its merge joined.",
        decode, decode_inputs,
        (
            Mistake(lambda ids, merges: decoded(ids, merges, swap=True), "The halves of a merge are joined the wrong way around: left + right."),
            Mistake(lambda ids, merges: decoded(ids, merges, errors="each"), "Each token is decoded by itself. A letter such as é has two bytes, which may be in two tokens: join the bytes first."),
            Mistake(lambda ids, merges: decoded(ids, merges, most=256), "Merged tokens are left out. Look up their bytes, too."),
            Mistake(lambda ids, merges: "".join(map(chr, ids)), "chr(i) is the character number i. An id above 255 stands for the bytes of a merge."),
            Mistake(lambda ids, merges: decode(ids, merges).encode(), "These are bytes. Decode them: .decode(\"utf-8\")."),
            Mistake(lambda ids, merges: decode(ids, merges).encode().decode("latin-1"), "The bytes are read as Latin-1. They are UTF-8."),
            Mistake(lambda ids, merges: " ".join(decoded([i], merges) for i in ids), "There are spaces between the tokens. Spaces are tokens' own bytes: join with nothing in between."),
            Mistake(lambda ids, merges: decode(ids[::-1], merges), "The order of the tokens is turned around."),
            Mistake(lambda ids, merges: list(decode(ids, merges)), "This is a list. \"\".join(...) makes a text of it."),
        ),
        ("Make a list `pieces` with the bytes of every id: first the 256 single bytes.", "Each merge appends pieces[left] + pieces[right].", 'b"".join(pieces[i] for i in ids).decode("utf-8")'),
    ),
]
