"""Wrong and right solutions of lesson 12, written apart from the exercises' own."""

import statistics


def example(source, marker, target, end):
    line = list(source) + [marker] + list(target) + [end]
    pairs = [(line[i], line[i + 1]) for i in range(len(line) - 1)]
    return [a for a, _ in pairs], [b for _, b in pairs], [i >= len(source) for i in range(len(pairs))]


def counted(rule):
    def made(source, marker, target, end):
        inputs, targets, _ = example(source, marker, target, end)
        return inputs, targets, [bool(rule(i, len(source), len(inputs))) for i in range(len(inputs))]

    return made


def unshifted(source, marker, target, end):
    line = list(source) + [marker] + list(target)
    return line, list(line), [i >= len(source) for i in range(len(line))]


def no_marker(source, marker, target, end):
    line = list(source) + list(target) + [end]
    return line[:-1], line[1:], [i >= len(source) - 1 for i in range(len(line) - 1)]


def best(score):
    return lambda rows: max(range(len(rows)), key=lambda i: score(rows[i]))


def common(one, other, most=None):
    left, n = list(other), 0
    for word in one:
        if word in left:
            left.remove(word)
            n += 1
    return n


def f1(n, one, other):
    return 2 * n / (len(one) + len(other))


def notes(events, advance=lambda clock, value: clock + value, third=lambda a, b: b):
    clock, held, made = 0, [], []
    for kind, value in events:
        if kind == "wait":
            clock = advance(clock, value)
        if kind == "on":
            held = [note for note in held if note[0] != value] + [(value, clock)]
        if kind == "off":
            made += [(pitch, begin, third(begin, clock)) for pitch, begin in held if pitch == value]
            held = [note for note in held if note[0] != value]
    return made


def with_the_unended(events):
    end = sum(value for kind, value in events if kind == "wait")
    done = notes(events)
    every = notes([*events, *(("off", value) for kind, value in events if kind == "on")])
    return done + [note for note in every[len(done) :] if note[2] == end]


def one_voice(events):
    clock, pitch, begin, made = 0, None, 0, []
    for kind, value in events:
        if kind == "wait":
            clock += value
        elif kind == "on":
            pitch, begin = value, clock
        elif kind == "off" and pitch is not None:
            made.append((pitch, begin, clock))
            pitch = None
    return made


MUTANTS = {
    "task_example": [
        (counted(lambda i, s, n: True), "Everything counts"),
        (counted(lambda i, s, n: i > s), "first token does not count"),
        (counted(lambda i, s, n: s <= i < n - 1), "The end does not count"),
        (counted(lambda i, s, n: i >= s - 1), "marker counts"),
        (counted(lambda i, s, n: i < s), "reversed"),
        (unshifted, "shift by one"),
        (no_marker, "marker is missing"),
    ],
    "choose_label": [
        (best(sum), "summed"),
        (lambda rows: min(range(len(rows)), key=lambda i: statistics.fmean(rows[i])), "least likely"),
        (best(lambda row: row[0]), "first token"),
        (best(max), "best token"),
        (best(min), "worst token"),
        (best(lambda row: row[-1]), "last token"),
    ],
    "rouge_1": [
        (lambda s, r: common(s, r) / len(r), "This is the recall"),
        (lambda s, r: common(s, r) / len(s), "This is the precision"),
        (lambda s, r: f1(len({*s} & {*r}), s, r), "counted once"),
        (lambda s, r: f1(len([w for w in s if w in r]), s, r), "counts each time"),
        (lambda s, r: (common(s, r) / len(r) + common(s, r) / len(s)) / 2, "plain mean"),
        (lambda s, r: f1(common(s, r), s, r) / 2, "factor 2"),
        (lambda s, r: len({*s} & {*r}) / len({*s, *r}), "Jaccard"),
    ],
    "events_to_notes": [
        (lambda events: notes(events, lambda clock, value: value), "replaces the time"),
        (lambda events: notes(events, lambda clock, value: clock + 1), "counts as one"),
        (lambda events: notes(events, lambda clock, value: 0), "stands still"),
        (lambda events: notes(events, third=lambda a, b: b - a), "duration"),
        (lambda events: sorted(notes(events), key=lambda note: note[1]), "sorted by their start"),
        (with_the_unended, "never ends"),
        (one_voice, "one note sounds"),
    ],
}

OTHER_STYLE = {
    "task_example": example,
    "choose_label": best(statistics.fmean),
    "rouge_1": lambda s, r: f1(common(s, r), s, r),
    "events_to_notes": notes,
}
