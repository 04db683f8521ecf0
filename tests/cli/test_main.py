"""The command line itself: help, version, wrong options, streams, and errors of the machine or of ours."""

from __future__ import annotations

import errno
import io
import os
import shlex
import subprocess
import sys
import tempfile

import pytest

import glassgpt as package
from glassgpt.cli import COMMANDS, main
from glassgpt.cli.commands import info

from .conftest import SRC, program, run_program


def test_version(glassgpt):
    answer = glassgpt("--version")
    assert (answer.code, answer.out, answer.err) == (0, f"glassgpt {package.__version__}\n", "")


def test_help_lists_every_command_with_an_example(glassgpt):
    answer = glassgpt("--help")
    assert answer.code == 0
    assert glassgpt().out == answer.out
    for name, command in COMMANDS.items():
        assert f"  {name}" in answer.out
        assert f"$ {command.examples[0]}" in answer.out
    assert max(map(len, answer.out.splitlines())) <= 80


@pytest.mark.parametrize("name", COMMANDS)
def test_command_help_shows_examples(glassgpt, name):
    answer = glassgpt(name, "--help")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.startswith(f"usage: glassgpt {name}")
    for example in COMMANDS[name].examples:
        assert f"$ {example}" in answer.out
    assert "(default: None)" not in answer.out
    assert "\x1b" not in answer.out


def test_an_unknown_command_gets_a_suggestion(glassgpt):
    assert glassgpt("inof", "gpt2").is_one_line_error("'inof'", "'info'", "glassgpt --help")
    assert glassgpt("xyzzy").is_one_line_error("'xyzzy'", "info")


def test_an_unknown_option_gets_a_suggestion(glassgpt):
    assert glassgpt("info", "gpt2", "--illustratd").is_one_line_error(
        "--illustratd", "Did you mean --illustrated?", "glassgpt info --help"
    )
    assert glassgpt("info", "gpt2", "gpt2-xl").is_one_line_error("gpt2-xl", "unexpected argument")
    assert glassgpt("generate", "A", "--modle", "x").is_one_line_error(
        "option --modle. Did you mean --model?"
    )


def test_help_and_version_import_nothing_heavy():
    code = (
        "import sys; from glassgpt.cli import main; main(['--version']); main(['--help']);"
        "print(sorted({'torch', 'numpy', 'transformers', 'rich', 'safetensors'} & set(sys.modules)))"
    )
    _, env = program()
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_python_dash_m():
    answer = run_program("--version")
    assert (answer.code, answer.out, answer.err) == (0, f"glassgpt {package.__version__}\n", "")


def test_an_argument_that_is_not_utf8():
    answer = run_program("info", b"caf\xe9")
    assert answer.is_one_line_error("argument 2", "0xe9", "offset 3")


def test_a_terminal_without_unicode():
    answer = run_program("info", "gpt2", PYTHONIOENCODING="ascii")
    assert answer.code == 0
    assert "50,257 x 768" in answer.out
    assert "###" in answer.out
    page = run_program("info", "--help", PYTHONIOENCODING="ascii")
    assert page.code == 0
    assert "\\u" not in page.out


def test_a_closed_pipe_is_silent():
    command, env = program("info", "gpt2-xl", "--every-block")
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        err = process.stderr.read()
    assert err == b""
    assert process.returncode == 141


@pytest.mark.skipif(os.name == "nt", reason="needs a POSIX shell")
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-"])
def test_streams_closed_at_startup(closed):
    command, env = program("info", "gpt2")
    shell = shlex.join(map(str, command)) + " " + closed
    done = subprocess.run(["sh", "-c", shell], env=env, capture_output=True, check=False)
    assert done.returncode == 0
    assert done.stderr == b""


OUTPUTS = {
    "stdout full": ("info gpt2 >/dev/full", 2, "no space left on device"),
    "stdout full, halfway": ("info gpt2-xl --every-block >/dev/full", 2, "no space left"),
    "stderr full": ("generate Hi --model {tiny} --max-new-tokens 3 2>/dev/full", 0, ""),
    "an error, stderr full": ("info nosuch 2>/dev/full", 2, ""),
    "both full": ("info gpt2 >/dev/full 2>/dev/full", 2, ""),
    "both closed": ("generate Hi --model {tiny} --max-new-tokens 3 >&- 2>&-", 0, ""),
    "an error, both closed": ("info nosuch >&- 2>&-", 2, ""),
}


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="only Linux has a device that is always full")
@pytest.mark.parametrize("name", OUTPUTS)
def test_output_to_a_full_disk_or_a_closed_stream(tiny, name):
    """The exit code is the command's, and Python prints no error of its own at exit."""
    line, code, message = OUTPUTS[name]
    command, env = program()
    shell = shlex.join(map(str, command)) + " " + line.format(tiny=shlex.quote(str(tiny)))
    done = subprocess.run(["sh", "-c", shell], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == code, done
    assert done.stderr.startswith("glassgpt: " + message if message else ""), done
    assert done.stderr.count("\n") == bool(message), done


FAILURES = {
    "disk full": (OSError(errno.ENOSPC, "No space left on device", "out/model"), ["no space", "out/model"]),
    "no permission": (
        PermissionError(errno.EACCES, "Permission denied", "secret"),
        ["permission denied", "secret"],
    ),
    "memory": (MemoryError(), ["out of memory"]),
    "memory for a library": (
        ImportError("libtorch_cpu.so: failed to map segment from shared object"),
        ["out of memory"],
    ),
    "torch memory": (RuntimeError("DefaultCPUAllocator: can't allocate memory: ..."), ["out of memory"]),
    "no torch": (ModuleNotFoundError("No module named 'torch'", name="torch"), ["pip install", "torch"]),
}


@pytest.mark.parametrize("name", FAILURES)
def test_errors_of_the_machine_are_one_line(glassgpt, monkeypatch, name):
    error, words = FAILURES[name]

    def fail(model):
        raise error

    monkeypatch.setattr(info, "find_model", fail)
    assert glassgpt("info", "gpt2").is_one_line_error(*words)


def test_an_internal_error_is_one_line_and_saves_its_traceback(glassgpt, monkeypatch, tmp_path):
    def fail(model):
        raise ZeroDivisionError("no\nway")

    monkeypatch.setattr(info, "find_model", fail)
    with monkeypatch.context() as patched:
        patched.setattr(tempfile, "tempdir", str(tmp_path))
        answer = glassgpt("info", "gpt2")
    (file,) = tmp_path.glob("glassgpt-*.traceback")
    assert (answer.code, answer.out) == (70, "")
    message = f"ZeroDivisionError: no way. The traceback is in {file}; please report it."
    assert answer.err == f"glassgpt: internal error: {message}\n"
    assert "in fail" in file.read_text()

    def full(**names):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(tempfile, "mkstemp", full)
        answer = glassgpt("info", "gpt2")
    assert answer.err.endswith("Set GLASSGPT_DEBUG=1 to see the traceback.\n")


def test_debug_raises_internal_and_user_errors(monkeypatch):
    monkeypatch.setenv("GLASSGPT_DEBUG", "1")
    with pytest.raises(Exception, match="illustrated"):
        main(["info", "gpt2-xl", "--illustrated"])
    monkeypatch.setattr(info, "find_model", None)
    with pytest.raises(TypeError):
        main(["info", "gpt2"])


def test_control_c(glassgpt, monkeypatch):
    def interrupt(model):
        print("first half")
        raise KeyboardInterrupt

    monkeypatch.setattr(info, "find_model", interrupt)
    answer = glassgpt("info", "gpt2")
    assert (answer.code, answer.out, answer.err) == (130, "first half\n", "\n")


def test_a_small_model_loads_without_dynamo_and_uses_one_thread(tiny):
    """torch._dynamo takes a second to import; a second thread costs more than it saves on a tiny product."""
    code = (
        "import sys, torch\n"
        "from glassgpt.cli import main\n"
        "torch.set_num_threads(2)\n"
        "assert main(['generate', 'x', '--model', sys.argv[1], '--max-new-tokens', '2']) == 0\n"
        "assert 'torch._dynamo' not in sys.modules\n"
        "assert torch.get_num_threads() == 1\n"
    )
    env = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    command = [sys.executable, "-c", code, str(tiny)]
    subprocess.run(command, env={**env, "PYTHONPATH": str(SRC)}, check=True, timeout=300, capture_output=True)


def test_utf8_arguments_in_an_ascii_locale():
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-m", "glassgpt", "tokens", "é", "--ids", "--model", "default"]
    plain = subprocess.run(command, capture_output=True, check=True)
    ascii_only = subprocess.run(command, capture_output=True, check=True, env=environment)
    assert ascii_only.stdout == plain.stdout


@pytest.mark.parametrize("columns", ["5", "1", "0", "-3", "many", "1000000000000"])
@pytest.mark.parametrize("name", [*COMMANDS, None])
def test_help_in_a_terminal_of_absurd_width(glassgpt, monkeypatch, name, columns):
    expected = glassgpt(*([] if name is None else [name]), "--help")
    monkeypatch.setenv("COLUMNS", columns)
    answer = glassgpt(*([] if name is None else [name]), "--help")
    assert answer.code == 0
    assert answer.err == ""
    assert sorted(split_words(answer.out)) == sorted(split_words(expected.out))  # no word is broken or lost
    assert "%%" not in answer.out
    assert os.environ["COLUMNS"] == columns


def split_words(page):
    return page.translate(str.maketrans("", "", "╭╮╰╯─│")).split()


def test_a_terminal_of_no_width_still_gets_text(monkeypatch):
    from glassgpt.cli import terminal

    class Terminal(io.StringIO):
        encoding = "utf-8"

        def isatty(self):
            return True

    monkeypatch.setenv("COLUMNS", "1")
    stream = Terminal()
    terminal.show("some words and others", stream=stream)
    assert "words" in stream.getvalue()
    assert terminal.console(stream).width == terminal.MIN_WIDTH


def test_a_lost_peer_process_is_one_line(glassgpt, monkeypatch):
    def lost(*words):
        raise RuntimeError("[pair.cc:553] Connection closed by peer [127.0.0.1]:57048.")

    monkeypatch.setattr("glassgpt.cli.run", lost)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    assert glassgpt("train").is_one_line_error("another process of this run has exited", "--resume")
