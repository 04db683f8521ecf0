"""Wrong and right solutions of lesson 1, written without a look at the course's own."""

from collections import Counter, defaultdict


def bytes_by_loop(text):
    out = []
    for byte in bytearray(text, "utf8"):
        out.append(byte)
    return out


def code_points(text):
    out = []
    for letter in text:
        out.append(ord(letter))
    return out


def bytes_object(text):
    return bytes(text, "utf8")


def latin(text):
    return [ord(c) if ord(c) < 256 else ord("?") for c in text]


def without_accents(text):
    return [b for c in text if ord(c) < 128 for b in c.encode()]


def strings(text):
    return [c for c in text]


def utf16(text):
    return [int(b) for b in bytes(text, "utf_16")]


def pairs_by_index(ids):
    counts = defaultdict(int)
    for i in range(len(ids) - 1):
        counts[ids[i], ids[i + 1]] += 1
    return dict(counts)


def pairs_step_two(ids):
    counts = {}
    for i in range(0, len(ids) - 1, 2):
        counts[ids[i], ids[i + 1]] = counts.get((ids[i], ids[i + 1]), 0) + 1
    return counts


def pairs_reversed(ids):
    counts = {}
    for i in range(1, len(ids)):
        counts[ids[i], ids[i - 1]] = counts.get((ids[i], ids[i - 1]), 0) + 1
    return counts


def pairs_ones(ids):
    counts = {}
    for i in range(1, len(ids)):
        counts[ids[i - 1], ids[i]] = 1
    return counts


def singles(ids):
    counts = {}
    for i in ids:
        counts[i] = counts.get(i, 0) + 1
    return counts


def pairs_but_last(ids):
    counts = {}
    for i in range(len(ids) - 2):
        counts[ids[i], ids[i + 1]] = counts.get((ids[i], ids[i + 1]), 0) + 1
    return counts


def pairs_around(ids):
    counts = {}
    for i in range(len(ids)):
        pair = ids[i - 1], ids[i]
        counts[pair] = counts.get(pair, 0) + 1
    return counts


def best_by_loop(counts):
    winner = None
    for pair in sorted(counts):
        if winner is None or counts[pair] > counts[winner]:
            winner = pair
    return winner


def first_met(counts):
    winner = None
    for pair, n in counts.items():
        if winner is None or n > counts[winner]:
            winner = pair
    return winner


def largest_on_ties(counts):
    winner = None
    for pair in sorted(counts):
        if winner is None or counts[pair] >= counts[winner]:
            winner = pair
    return winner


def merge_by_index(ids, pair, new_id):
    out, skip = [], False
    for i, token in enumerate(ids):
        if skip:
            skip = False
        elif i < len(ids) - 1 and token == pair[0] and ids[i + 1] == pair[1]:
            out.append(new_id)
            skip = True
        else:
            out.append(token)
    return out


def merge_keeps_second(ids, pair, new_id):
    out = list(ids)
    for i in range(len(out) - 1):
        if out[i] == pair[0] and out[i + 1] == pair[1]:
            out[i] = new_id
    return out


def merge_once(ids, pair, new_id):
    out = list(ids)
    for i in range(len(out) - 1):
        if out[i] == pair[0] and out[i + 1] == pair[1]:
            out[i : i + 2] = [new_id]
            break
    return out


def merge_parts(ids, pair, new_id):
    return [new_id if token == pair[0] or token == pair[1] else token for token in ids]


def merge_drops_last(ids, pair, new_id):
    out, i = [], 0
    while i < len(ids) - 1:
        if ids[i] == pair[0] and ids[i + 1] == pair[1]:
            out.append(new_id)
            i += 1
        else:
            out.append(ids[i])
        i += 1
    return out


def merge_backwards(ids, pair, new_id):
    out = list(ids)
    i = len(out) - 2
    while i >= 0:
        if out[i] == pair[0] and out[i + 1] == pair[1]:
            out[i : i + 2] = [new_id]
            i -= 1
        i -= 1
    return out


def merge_list_and_tuple(ids, pair, new_id):
    return [token for token in ids]  # [a, b] == (a, b) is never true


def train_by_recursion(text, n_merges):
    merges, ids = [], list(text.encode())
    while len(merges) < n_merges and len(ids) > 1:
        merges.append(best_by_loop(pairs_by_index(ids)))
        ids = merge_by_index(ids, merges[-1], 255 + len(merges))
    return merges


def train_from(start):
    def train(text, n_merges):
        merges, ids = [], list(text.encode())
        while len(merges) < n_merges and len(ids) > 1:
            merges.append(best_by_loop(pairs_by_index(ids)))
            ids = merge_by_index(ids, merges[-1], start + len(merges) - 1)
        return merges

    return train


def train_counting_once(text, n_merges):
    left = pairs_by_index(list(text.encode()))
    merges = []
    while left and len(merges) < n_merges:
        merges.append(best_by_loop(left))
        del left[merges[-1]]
    return merges


def train_one_more(text, n_merges):
    return train_by_recursion(text, n_merges + 1)


def train_returns_ids(text, n_merges):
    ids = list(text.encode())
    for n, pair in enumerate(train_by_recursion(text, n_merges)):
        ids = merge_by_index(ids, pair, 256 + n)
    return ids


def train_nothing(text, n_merges):
    merges = []
    for _ in range(n_merges):
        pass
    return merges


def encode_by_rank(text, merges):
    rank = {pair: n for n, pair in enumerate(merges)}
    ids = list(text.encode())
    while True:
        known = [rank[p] for p in zip(ids, ids[1:]) if p in rank]
        if not known:
            return ids
        ids = merge_by_index(ids, merges[min(known)], 256 + min(known))


def encode_reversed(text, merges):
    ids = list(text.encode())
    for n in range(len(merges) - 1, -1, -1):
        ids = merge_by_index(ids, merges[n], 256 + n)
    return ids


def encode_returns_early(text, merges):
    ids = list(text.encode())
    for n, pair in enumerate(merges):
        return merge_by_index(ids, pair, 256 + n)
    return ids


def encode_learning_again(text, merges):
    return train_returns_ids(text, len(merges))


def encode_bytes_only(text, merges):
    return list(bytes(text, "utf8"))


def encode_one_short(text, merges):
    ids = list(text.encode())
    for n in range(len(merges) - 1):
        ids = merge_by_index(ids, merges[n], 256 + n)
    return ids


def decode_by_recursion(ids, merges):
    def spell(i):
        return bytes([i]) if i < 256 else spell(merges[i - 256][0]) + spell(merges[i - 256][1])

    return b"".join(map(spell, ids)).decode()


def decode_swapped(ids, merges):
    def spell(i):
        return bytes([i]) if i < 256 else spell(merges[i - 256][1]) + spell(merges[i - 256][0])

    return b"".join(map(spell, ids)).decode("utf8", "replace")


def decode_each(ids, merges):
    def spell(i):
        return bytes([i]) if i < 256 else spell(merges[i - 256][0]) + spell(merges[i - 256][1])

    return "".join(spell(i).decode("utf8", errors="replace") for i in ids)


def decode_chr(ids, merges):
    text = ""
    for i in ids:
        text += chr(i)
    return text


def decode_no_text(ids, merges):
    return bytes(decode_by_recursion(ids, merges), "utf8")


def decode_small_only(ids, merges):
    return bytes(i for i in ids if i < 256).decode("utf8", "replace")


MUTANTS = {
    "text_bytes": [(code_points, "Unicode numbers"), (bytes_object, "bytes object"), (latin, "Latin-1"), (without_accents, "are lost"), (strings, "characters"), (utf16, "UTF-16")],
    "count_pairs": [(pairs_step_two, "every second pair"), (pairs_reversed, "wrong way around"), (pairs_ones, "counts as one"), (singles, "single ids"), (pairs_but_last, "last pair is missing"), (pairs_around, "not a ring")],
    "best_pair": [(first_met, "came first"), (largest_on_ties, "takes the largest pair"), (lambda c: sorted(c, key=lambda p: (c[p], p))[0], "rarest"), (lambda c: sorted(c)[-1], "largest pair, not"), (lambda c: max(c.values()), "This is the count")],
    "merge": [(merge_keeps_second, "right half"), (merge_once, "first occurrence"), (merge_parts, "Every id of the pair"), (merge_drops_last, "last id is lost"), (merge_backwards, "right to left"), (merge_list_and_tuple, "Nothing changes")],
    "train_bpe": [(train_from(0), "begin at 0"), (train_from(257), "257"), (train_counting_once, "pairs of the bytes"), (train_one_more, "too many"), (train_returns_ids, "ids of the text"), (train_nothing, "empty")],
    "encode": [(encode_reversed, "from the last to the first"), (encode_returns_early, "comes too early"), (encode_learning_again, "learns new merges"), (encode_bytes_only, "These are the bytes"), (encode_one_short, "last merge is missing")],
    "decode": [(decode_swapped, "wrong way around"), (decode_each, "decoded by itself"), (decode_chr, "chr(i)"), (decode_no_text, "These are bytes"), (decode_small_only, "left out")],
}
OTHER_STYLE = {
    "text_bytes": bytes_by_loop,
    "count_pairs": lambda ids: dict(Counter(zip(ids, ids[1:]))),
    "best_pair": best_by_loop,
    "merge": merge_by_index,
    "train_bpe": train_by_recursion,
    "encode": encode_by_rank,
    "decode": decode_by_recursion,
}
