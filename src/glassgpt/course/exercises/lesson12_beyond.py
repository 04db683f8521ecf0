"""Lesson 12: the same model for other jobs."""

from collections import Counter

import numpy as np

from glassgpt.course.exercise import Exercise, Mistake


def task_example(source, marker, target, end):
    ids = [*source, marker, *target, end]
    counted = [False] * len(source) + [True] * (len(target) + 1)
    return ids[:-1], ids[1:], counted


def choose_label(logprobs):
    return int(np.argmax([np.mean(row) for row in logprobs]))


def rouge_1(summary, reference):
    common = (Counter(summary) & Counter(reference)).total()
    if common == 0:
        return 0.0
    precision, recall = common / len(summary), common / len(reference)
    return 2 * precision * recall / (precision + recall)


def events_to_notes(events):
    now = 0
    since = {}  # pitch: when it began
    notes = []
    for kind, value in events:
        if kind == "wait":
            now += value
        elif kind == "on":
            since[value] = now
        elif kind == "off" and value in since:
            notes.append((value, since.pop(value), now))
    return notes


def _examples(rng):
    def ids(n):
        return [int(i) for i in rng.integers(10, 90, size=n)]

    return [(ids(3), 1, ids(2), 0), (ids(1), 2, ids(4), 0), (ids(5), 1, ids(1), 0), (ids(2), 2, [], 0)]


def _shift(source, marker, target, end, counted):
    inputs, targets, _ = task_example(source, marker, target, end)
    return inputs, targets, counted


def _scores(rng):
    return [
        ([-1.0, -2.0], [-2.5], [-0.5, -0.5, -0.5, -2.0]),
        ([-3.0], [-1.0, -1.5, -1.4]),
        ([-0.1, -9.0], [-2.0, -2.0], [-3.0]),
        ([-1.0], [-1.2, -0.2, -0.1], [-2.0, -0.05]),
        ([-4.0, -4.0], [-1.0, -4.6]),
    ]


def _words(rng):
    return [
        ("the cat sat on the mat".split(), "the cat lay on a mat".split()),
        ("a a a b".split(), "a b c".split()),
        ("red green".split(), "blue".split()),
        ("the robot obeys".split(), "the robot obeys every order".split()),
        ("one two two three four".split(), "two two".split()),
    ]


def _mean(a, b):
    return 0.0 if a + b == 0 else 2 * a * b / (a + b)


def _rouge(summary, reference, common):
    return _mean(common / len(summary), common / len(reference))


def _unguarded(summary, reference):
    common = _common(summary, reference)
    precision, recall = common / len(summary), common / len(reference)
    return 2 * precision * recall / (precision + recall)


def _common(summary, reference):
    return (Counter(summary) & Counter(reference)).total()


CHORD = [("on", 60), ("wait", 50), ("on", 64), ("wait", 25), ("off", 60), ("wait", 25), ("off", 64)]
TUNE = [("wait", 10), ("on", 67), ("wait", 30), ("off", 67), ("on", 67), ("wait", 20), ("off", 67), ("off", 50)]
NESTED = [("on", 55), ("wait", 5), ("on", 59), ("wait", 10), ("off", 59), ("wait", 10), ("off", 55)]
MIXED = [("on", 48), ("velocity", 20), ("on", 52), ("wait", 100), ("wait", 40), ("off", 52), ("off", 48), ("on", 70)]


def _notes(events, *, wait=lambda now, value: now + value, made=None, first=False, after=False):
    """`events_to_notes` with some step exchanged."""
    now, since, notes = 0, {}, []
    for kind, value in events:
        if kind == "wait":
            now = wait(now, value)
        elif kind == "on":
            since[value] = now
        elif kind == "off" and value in since:
            start = since[value] if first else since.pop(value)
            notes.append((value, start, now) if made is None else made(value, start, now))
    if after:
        notes += [(pitch, start, now) for pitch, start in since.items()]
    return notes


def _one_at_a_time(events):
    now, note, notes = 0, None, []
    for kind, value in events:
        if kind == "wait":
            now += value
        elif kind == "on":
            note = (value, now)
        elif kind == "off" and note is not None:
            notes.append((*note, now))
            note = None
    return notes


def _without_a_guard(events):
    now, since, notes = 0, {}, []
    for kind, value in events:
        if kind == "wait":
            now += value
        elif kind == "on":
            since[value] = now
        elif kind == "off":
            notes.append((value, since.pop(value), now))
    return notes


def _everything_waits(events):
    return events_to_notes([(kind if kind in ("on", "off") else "wait", value) for kind, value in events])


EXERCISES = [
    Exercise(
        name="task_example",
        lesson=12,
        task="Make inputs, targets and what counts from source, marker, target, end: only the target and the end count.",
        solution=task_example,
        inputs=_examples,
        hints=(
            "One sequence: the source, the marker, the target, the end. A decoder reads it like any text.",
            "Inputs are all but the last id; targets are all but the first: the token that follows each input.",
            "A place counts if its target is one of the answer's tokens or the end. The first such place is the marker's.",
        ),
        mistakes=(
            Mistake(
                lambda s, m, t, e: _shift(s, m, t, e, [True] * (len(s) + len(t) + 1)),
                "Everything counts. Then the model also learns to write the source: count only the answer and the end.",
            ),
            Mistake(
                lambda s, m, t, e: _shift(s, m, t, e, [False] * (len(s) + 1) + [True] * len(t)),
                "The answer's first token does not count. It is the target at the marker's place.",
            ),
            Mistake(
                lambda s, m, t, e: _shift(s, m, t, e, [False] * len(s) + [True] * len(t) + [False]),
                "The end does not count. Without it the model never learns to stop.",
            ),
            Mistake(
                lambda s, m, t, e: _shift(s, m, t, e, [False] * (len(s) - 1) + [True] * (len(t) + 2)),
                "The marker counts as a target. It is given, like the source.",
            ),
            Mistake(
                lambda s, m, t, e: _shift(s, m, t, e, [True] * len(s) + [False] * (len(t) + 1)),
                "It is reversed: the source counts and the answer does not.",
            ),
            Mistake(
                lambda s, m, t, e: ([*s, m, *t], [*s, m, *t], [False] * len(s) + [True] * (len(t) + 1)),
                "The targets are the inputs. Each target is the token AFTER its input: shift by one.",
            ),
            Mistake(
                lambda s, m, t, e: ([*s, m, *t, e], [*s[1:], m, *t, e], [False] * len(s) + [True] * (len(t) + 1)),
                "Inputs and targets have different lengths. The end is never an input: nothing follows it.",
            ),
            Mistake(
                lambda s, m, t, e: ([*s, *t], [*s[1:], *t, e], [False] * (len(s) - 1) + [True] * (len(t) + 1)),
                "The marker is missing. Put it between the source and the answer.",
            ),
            Mistake(
                lambda s, m, t, e: ([*s, m, *t, e], [*s, m, *t, e], [False] * (len(s) + 1) + [True] * (len(t) + 1)),
                "Inputs and targets are the same. A target is the token after the input: leave out the last input and the first target.",
            ),
            Mistake(
                lambda s, m, t, e: ([*s, m, *t][:-1], [*s, m, *t][1:], [False] * len(s) + [True] * len(t)),
                "The end is missing: it comes after the answer.",
            ),
            Mistake(
                lambda s, m, t, e: ([*s, m], [*t, e], [True] * (len(t) + 1)),
                "A decoder has one sequence: source, marker, target, end. Inputs are all of it but the last id, targets all but the first.",
            ),
        ),
    ),
    Exercise(
        name="choose_label",
        lesson=12,
        task="Choose the label whose tokens have the highest MEAN log-probability; return its place in the list.",
        solution=choose_label,
        inputs=lambda rng: [(rows,) for rows in _scores(rng)],
        hints=(
            "Every label has a list of log-probabilities, one for each of its tokens.",
            "The sum would punish labels of several tokens. np.mean of each list, then np.argmax.",
        ),
        mistakes=(
            Mistake(
                lambda rows: int(np.argmax([np.sum(row) for row in rows])),
                "The log-probabilities are summed, so short labels win. Take the mean per token.",
            ),
            Mistake(
                lambda rows: int(np.argmin([np.mean(row) for row in rows])),
                "The least likely label is chosen. Log-probabilities are negative: the best is nearest to 0.",
            ),
            Mistake(
                lambda rows: int(np.argmax([row[0] for row in rows])),
                "Only each label's first token is compared. Use all of its tokens.",
            ),
            Mistake(
                lambda rows: int(np.argmax([np.max(row) for row in rows])),
                "Only each label's best token is compared. Use the mean of all of its tokens.",
            ),
            Mistake(
                lambda rows: int(np.argmax([np.min(row) for row in rows])),
                "Only each label's worst token is compared. Use the mean of all of its tokens.",
            ),
            Mistake(
                lambda rows: int(np.argmax([row[-1] for row in rows])),
                "Only each label's last token is compared. Use all of its tokens.",
            ),
            Mistake(
                lambda rows: [float(np.mean(row)) for row in rows],
                "These are the means of all labels. Return the place of the highest: np.argmax.",
            ),
            Mistake(
                lambda rows: float(np.max([np.mean(row) for row in rows])),
                "This is the best mean itself. Return the place of its label: np.argmax.",
            ),
        ),
    ),
    Exercise(
        name="rouge_1",
        lesson=12,
        task="The F1 score of common words: precision = common / summary's words, recall = common / reference's words.",
        solution=rouge_1,
        inputs=_words,
        hints=(
            "A word counts as often as it stands in both: Counter(a) & Counter(b) keeps the smaller count.",
            "precision divides by the length of the summary, recall by that of the reference.",
            "F1 = 2 precision recall / (precision + recall), and 0 if nothing is common.",
        ),
        mistakes=(
            Mistake(
                lambda s, r: _common(s, r) / len(r),
                "This is the recall. A long summary could have it for free: join it with the precision.",
            ),
            Mistake(
                lambda s, r: _common(s, r) / len(s),
                "This is the precision. A one-word summary could have it for free: join it with the recall.",
            ),
            Mistake(
                lambda s, r: _rouge(s, r, len(set(s) & set(r))),
                "Each word is counted once, however often it stands in both. Use the smaller of its two counts.",
            ),
            Mistake(
                lambda s, r: _rouge(s, r, sum(word in r for word in s)),
                "A word that is repeated in the summary counts each time. It counts at most as often as in the reference.",
            ),
            Mistake(
                lambda s, r: (_common(s, r) / len(s) + _common(s, r) / len(r)) / 2,
                "This is the plain mean of precision and recall. F1 is 2 p r / (p + r).",
            ),
            Mistake(
                lambda s, r: len(set(s) & set(r)),
                "This is a number of words. Divide it by the lengths of both texts, and join the two shares.",
            ),
            Mistake(
                lambda s, r: _rouge(s, r, _common(s, r)) / 2,
                "The factor 2 is missing: 2 p r / (p + r).",
            ),
            Mistake(
                lambda s, r: len(set(s) & set(r)) / len(set(s) | set(r)),
                "This is the share of words that both have (Jaccard's). F1 joins precision and recall.",
            ),
            Mistake(
                lambda s, r: _common(s, r) / len(s) * _common(s, r) / len(r),
                "This is the product of precision and recall. F1 is 2 p r / (p + r).",
            ),
            Mistake(
                lambda s, r: _rouge(s, r, sum(a == b for a, b in zip(s, r, strict=False))),
                "Words are compared place by place. They may stand anywhere in both texts.",
            ),
            Mistake(_unguarded, "It divides by zero when no word is common. Return 0.0 then."),
        ),
    ),
    Exercise(
        name="events_to_notes",
        lesson=12,
        task="Turn events (on, off, wait, others) into notes (pitch, start, end), in the order in which they end.",
        solution=events_to_notes,
        inputs=lambda rng: [(events,) for events in (CHORD, TUNE, NESTED, MIXED)],
        hints=(
            "Keep a clock: `wait` moves it on. All other events happen at the time it shows.",
            "A dict remembers when each pitch began. `off` looks it up, makes the note, and forgets it.",
            "Ignore an `off` without its `on`, and events of other kinds.",
        ),
        mistakes=(
            Mistake(
                lambda events: _notes(events, wait=lambda now, value: value),
                "A wait replaces the time. It is added to the time.",
            ),
            Mistake(
                lambda events: _notes(events, wait=lambda now, value: now + 1),
                "Every wait counts as one. Add its value.",
            ),
            Mistake(
                lambda events: _notes(events, made=lambda pitch, start, now: (pitch, start, now - start)),
                "The third number is the duration. Return when the note ends.",
            ),
            Mistake(
                lambda events: sorted(_notes(events), key=lambda note: note[1:2]),
                "The notes are sorted by their start. Return them in the order in which they end.",
            ),
            Mistake(
                lambda events: _notes(events, after=True),
                "A note that never ends is added. Without an `off` there is no note.",
            ),
            Mistake(_one_at_a_time, "Only one note sounds at a time here. Remember the start of every pitch: a dict."),
            Mistake(
                lambda events: _notes(events, made=lambda pitch, start, now: (pitch, now, now)),
                "A note starts when it ends. Remember the time of its `on`.",
            ),
            Mistake(
                lambda events: _notes(events, made=lambda pitch, start, now: (start, now, pitch)),
                "The order is (pitch, start, end).",
            ),
            Mistake(
                lambda events: _notes(events, wait=lambda now, value: now),
                "The clock stands still. `wait` moves it on.",
            ),
            Mistake(
                _without_a_guard,
                "It raises a KeyError for an `off` without its `on`. Ignore such an event.",
            ),
            Mistake(
                _everything_waits,
                "Other events move the clock, too. Only `wait` does.",
            ),
        ),
    ),
]
