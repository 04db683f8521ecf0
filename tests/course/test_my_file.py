"""`course.keep` writes right functions into my_gpt2.py, and never damages the reader's file."""

from __future__ import annotations

import linecache

import numpy as np
import pytest

from glassgpt import course
from glassgpt.course.exercises import EXERCISES
from glassgpt.course.my_file import names

SOFTMAX = """def softmax(x):
    # mine
    e = np.exp(x - np.max(x, -1, keepdims=True))
    return e / np.sum(e, -1, keepdims=True)
"""


def define(source, name="softmax", file=None):
    """A function whose source can be found, as in a notebook's cell."""
    file = f"<cell {hash(source)}>" if file is None else file
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    made = {"np": np, "math": __import__("math"), "HELPER": 1.0}
    exec(compile(source, file, "exec"), made)
    return made[name]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "my_gpt2.py"


def test_a_right_function_is_written_and_replaced(path, capsys):
    function = define(SOFTMAX)
    assert course.keep("softmax", function, path) is function
    assert SOFTMAX in path.read_text()
    assert "Written to" in capsys.readouterr().out
    before = path.read_bytes()
    course.keep("softmax", function, path)
    assert path.read_bytes() == before
    other = define(SOFTMAX.replace("# mine", "# better"))
    course.keep("softmax", other, path)
    assert path.read_text() == before.decode().replace("# mine", "# better")


def test_a_wrong_function_is_not_written(path, capsys):
    wrong = define(SOFTMAX.replace("-1", "0"))
    assert course.keep("softmax", wrong, path) is EXERCISES["softmax"].solution
    assert not path.exists()
    assert "axis" in capsys.readouterr().out


def test_what_the_reader_wrote_stays(path):
    own = '''#!/usr/bin/env python
"""Mine."""
import math  # first
import numpy as np

RATE = 3


def gelu(x):
    return wrong


# about linear
def linear(x, w, b): return x @ w + b


class softmax_like:
    def softmax(self): "not this one"


if RATE:
    print("hello")'''
    path.write_text(own)
    course.keep("softmax", define(SOFTMAX), path)
    text = path.read_text()
    assert text.replace("\n\n" + SOFTMAX, "") == own + "\n"
    assert text.index("def softmax(x)") < text.index("def gelu")


@pytest.mark.parametrize(
    ("text", "same"),
    [
        (b"import numpy as np\r\n\r\nX = 1\r\n", b"X = 1\r\n"),
        (
            b"\xef\xbb\xbfimport numpy as np\nX = 'caf\xc3\xa9'\n",
            b"\xef\xbb\xbfimport numpy as np\nX = 'caf\xc3\xa9'\n",
        ),
        (
            b"import numpy as np\nX = 'a\\\n\x0cb'\n\x0c\ndef softmax(x):\n    return x\nY = 2\n",
            b"X = 'a\\\n\x0cb'\n\x0c\n",
        ),
        (b"import numpy as np\nX = '''\ndef softmax(x):\n'''\n", b"X = '''\ndef softmax(x):\n'''\n"),
        (b"", b""),
        (b"import numpy as np", b"import numpy as np\n"),
    ],
)
def test_unusual_files_keep_their_bytes(path, text, same):
    path.write_bytes(text)
    course.keep("softmax", define(SOFTMAX), path)
    written = path.read_bytes()
    if text == b"":
        assert written == b"", "without numpy the function does not work there"
        return
    assert same in written
    assert b"# mine" in written
    assert (b"\r\n" in text) == (b"\r\n" in written)
    if b"\r\n" in text:
        assert written.count(b"\n") == written.count(b"\r\n")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"def broken(:\n", "not valid Python, line 1"),
        (b"x = '\xff'\n", "not UTF-8"),
        (b"raise ValueError('no')\n", "raises ValueError"),
        (b"import sys\nsys.exit()\n", "calls exit"),
        (b"\x00", "not valid Python"),
        (b"x" * (2 << 20), "bytes"),
    ],
)
def test_a_file_that_does_not_work_is_left_alone(path, capsys, content, words):
    path.write_bytes(content)
    function = define(SOFTMAX)
    assert course.keep("softmax", function, path) is function
    assert path.read_bytes() == content
    assert words in capsys.readouterr().out


def test_a_folder_of_that_name(path, capsys):
    path.mkdir()
    course.keep("softmax", define(SOFTMAX), path)
    assert "is not a file" in capsys.readouterr().out


def test_a_function_that_needs_more_than_the_file_has(path, capsys):
    source = SOFTMAX.replace("    # mine\n", "    x = x * HELPER\n")
    course.keep("softmax", define(source), path)
    assert not path.exists()
    assert "HELPER" in capsys.readouterr().out


def test_functions_without_a_source_of_their_own(path, capsys):
    shares = "np.exp(x - x.max(-1, keepdims=True))"
    source = f"softmax = lambda x: {shares} / {shares}.sum(-1, keepdims=True)\n"
    course.keep("softmax", define(source), path)
    assert "def softmax(" in capsys.readouterr().out
    course.keep("softmax", EXERCISES["softmax"].solution, path)
    assert "the course's own" in capsys.readouterr().out
    named = define(SOFTMAX.replace("def softmax", "def mine"), "mine")
    course.keep("softmax", named, path)
    assert "def softmax(" in capsys.readouterr().out
    assert not path.exists()


def test_a_link_stays_a_link(path, tmp_path):
    real = tmp_path / "real.py"
    real.write_text("import numpy as np\n")
    path.symlink_to(real)
    course.keep("softmax", define(SOFTMAX), path)
    assert path.is_symlink()
    assert "# mine" in real.read_text()


def test_missing_functions_are_the_courses_own(path, capsys):
    course.keep("softmax", define(SOFTMAX), path)
    capsys.readouterr()
    mine = course.my_gpt2(path)
    said = capsys.readouterr().out
    assert f"has 1 of {len(names())} functions" in said
    assert "softmax" not in said.split("stand in for: ")[1].replace("# mine", "")
    ids = np.array(course.model().encode("Once upon a time"))
    expected = EXERCISES["gpt2"].solution(ids, course.weights(), *course.shape())
    np.testing.assert_allclose(mine.gpt2(ids, course.weights(), *course.shape()), expected, rtol=1e-6)


def write_all(path):
    """Every function in the file, as a reader who solved all would have it."""
    for number, name in enumerate(names()):
        source = course.solution(name) + "\n"
        made = define_with_others(source, name, number)
        course.keep(name, made, path)


def define_with_others(source, name, number):
    file = f"<all {number}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    made = {other: EXERCISES[other].solution for other in names()} | {"np": np, "math": __import__("math")}
    exec(compile(source, file, "exec"), made)
    return made[name]


@pytest.mark.slow
@pytest.mark.parametrize("model", ["tiny", "default"])
def test_the_finished_file_equals_the_engine(path, model, capsys):
    import glassgpt

    write_all(path)
    capsys.readouterr()
    mine = course.my_gpt2(path)
    assert capsys.readouterr().out == "", "all functions are in the file"
    gpt = glassgpt.load(model, dtype="float32")
    ids = gpt.encode("The old house stood at the end of the lane, and the garden was full of")
    own = mine.gpt2(np.array(ids), course.weights(model), *course.shape(model))
    np.testing.assert_allclose(own, np.asarray(gpt.logits([ids]))[0], atol=1e-4, rtol=0)


def test_only_functions_of_earlier_lessons_are_missed(tmp_path, capsys):
    course.my_gpt2(tmp_path / "my_gpt2.py", lesson=4)
    assert capsys.readouterr().out == (
        "my_gpt2.py has 0 of 2 functions.\nThe course's own stand in for: embed, softmax\n"
    )
