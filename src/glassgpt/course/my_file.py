"""The reader's own file: `keep` writes each right function into my_gpt2.py, and nothing else."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from pathlib import Path
from types import ModuleType

from glassgpt.course.check import Verdict, check, find_exercise
from glassgpt.course.exercise import Function
from glassgpt.course.exercises import EXERCISES
from glassgpt.errors import UserError
from glassgpt.files import atomic_write, read_bytes, resolve_symlink

FILE = "my_gpt2.py"
LIMIT = 1 << 20  # bytes of a file that a person wrote
START = '''"""My GPT-2 in numpy, written function by function in the course of GlassGPT."""

import math

import numpy as np
'''
END = """
if __name__ == "__main__":  # python my_gpt2.py "Once upon a time"
    import sys

    from glassgpt import course

    gpt, weights, (n_layer, n_head) = course.model(), course.weights(), course.shape()
    prompt = " ".join(sys.argv[1:]) or "Once upon a time"
    ids = generate(gpt.encode(prompt), 30, weights, n_layer, n_head)
    print(prompt + gpt.decode(ids))
"""


def names() -> list[str]:
    """The functions of my_gpt2.py, in the order of the lessons."""
    return [name for name, exercise in EXERCISES.items() if exercise.keep]


def keep(name: str, function: Function, path: str | Path = FILE) -> Function:
    """Check a function, print the sentence, and write it to the reader's file if it is right. Returns it, or
    the course's own if it is wrong, so that the lesson goes on."""
    exercise = find_exercise(name)
    verdict = check(name, function)
    print(verdict)
    if not verdict.passed:
        print("The lesson goes on with the course's own function.")
        return exercise.solution
    if function is exercise.solution:
        print(f"It is the course's own, so {path} stays as it is.")
        return function
    try:
        changed = write(name, function, Path(path))
    except UserError as problem:
        print(f"Not written to {path}: {problem}")
    else:
        print(f"Written to {path}." if changed else f"{path} has it already.")
    return function


def write(name: str, function: Function, path: Path) -> bool:
    """Put a function in the file, in place of an older one of that name. Nothing is written unless the file
    works with it. Returns whether the file changed."""
    path = resolve_symlink(path)
    before = read(path) if path.exists() else START + END
    after = insert(before, name, source_of(name, function))
    verdict = try_out(name, after)
    if not verdict.passed:
        raise UserError(
            f"in a file of its own it does not work: {verdict.sentence} It may use only numpy as np, math "
            f"and the functions {', '.join(names())}; define everything else inside it."
        )
    if path.exists() and after == before:
        return False
    data = after.encode("utf-8")
    with atomic_write(path, needs=len(data)) as part:
        part.write_bytes(data)
    return True


def read(path: Path) -> str:
    if not path.is_file():
        raise UserError(f"{path} is not a file. Move it away, or give another path.")
    data = read_bytes(path, LIMIT)
    try:
        text = data.decode("utf-8")
        ast.parse(text.removeprefix("\ufeff"))
    except UnicodeDecodeError:
        raise UserError(f"{path} is not UTF-8. Save it as UTF-8, or move it away.") from None
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
        raise UserError(f"{path} is not valid Python{line}. Mend it, or move it away.") from None
    return text


def source_of(name: str, function: Function) -> str:
    try:
        source = textwrap.dedent(inspect.getsource(function)).strip("\n")
        tree = ast.parse(source)
    except (OSError, TypeError, SyntaxError, ValueError):
        raise UserError(f"its source was not found. Type `def {name}(...)` in a cell of its own.") from None
    if len(tree.body) != 1 or not isinstance(tree.body[0], ast.FunctionDef) or tree.body[0].name != name:
        raise UserError(f"it has to be a function that begins with `def {name}(`.")
    if tree.body[0].decorator_list:
        raise UserError("it has a decorator, which the file would not know. Take it away.")
    return source


def insert(text: str, name: str, source: str) -> str:
    """The file with the function in it: in its old place, or before the first function of a later lesson."""
    mark = "\ufeff" if text.startswith("\ufeff") else ""
    newline = "\r\n" if "\r\n" in text else "\n"
    body = text.removeprefix(mark)
    nodes = ast.parse(body).body
    lines = split_lines(body)
    if lines and not lines[-1].endswith(("\n", "\r")):
        lines[-1] += newline
    new = [line.rstrip("\r\n") + newline for line in split_lines(source)]
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef) and not node.decorator_list]
    same = [node for node in functions if node.name == name]
    if same:
        first, last = same[-1].lineno - 1, same[-1].end_lineno  # the last one counts
    else:
        later = names()[names().index(name) + 1 :]
        starts = [node.lineno for node in functions if node.name in later]
        starts += [node.lineno for node in nodes if isinstance(node, ast.If)]
        first = min(starts) - 1 if starts else len(lines)
        while first and (not lines[first - 1].strip() or lines[first - 1].startswith("#")):
            first -= 1  # a comment belongs to what follows
        last, new = first, [newline, newline, *new]
    result = mark + "".join([*lines[:first], *new, *lines[last:]])
    if others(result.removeprefix(mark), name) != others(body, name):
        raise UserError("the file would be damaged. Put the function into it by hand.")
    return result


def split_lines(text: str) -> list[str]:
    """Lines as Python counts them: str.splitlines also ends one at a form feed."""
    return re.findall(r"[^\r\n]*(?:\r\n|\n|\r)|[^\r\n]+$", text)


def others(text: str, name: str) -> list[str]:
    """Everything in a file but the functions of that name."""
    nodes = ast.parse(text).body
    return [ast.dump(node) for node in nodes if not (isinstance(node, ast.FunctionDef) and node.name == name)]


def try_out(name: str, text: str) -> Verdict:
    """Check the function as it is in the file."""
    try:
        module = execute(text)
    except Exception as error:
        return Verdict(False, f"the file raises {type(error).__name__}: {error}.")
    return check(name, getattr(module, name))


def execute(text: str) -> ModuleType:
    """The file as a module; the functions that it has not got yet are the course's own."""
    module = ModuleType("my_gpt2")
    for other in names():
        setattr(module, other, EXERCISES[other].solution)
    code = compile(text.removeprefix("\ufeff"), FILE, "exec")
    try:
        exec(code, module.__dict__)
    except SystemExit:
        raise UserError("it calls exit.") from None
    return module


def my_gpt2(path: str | Path = FILE, *, lesson: int | None = None) -> ModuleType:
    """The reader's GPT-2 as a module. The course's own functions stand in for those that are missing; a line
    says which of those before `lesson`."""
    path = Path(path)
    module = execute(read(path) if path.exists() else START)
    due = [name for name in names() if lesson is None or EXERCISES[name].lesson < lesson]
    missing = [name for name in due if getattr(module, name) is EXERCISES[name].solution]
    if missing:
        print(f"{path.name} has {len(due) - len(missing)} of {len(due)} functions.")
        print(f"The course's own stand in for: {', '.join(missing)}")
    return module
