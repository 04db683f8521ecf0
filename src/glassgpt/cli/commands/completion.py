"""`glassgpt completion SHELL`: tab completion."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from typing import Annotated, Literal

from glassgpt.cli.commands import COMMANDS
from glassgpt.cli.parser.help import describe
from glassgpt.cli.parser.options import Flag, Option, Positional, choices, read_signature
from glassgpt.cli.parser.parse import load_command


def command(
    shell: Annotated[
        Positional[Literal["bash", "zsh", "fish", "man"]], Flag("your shell; man for a man page", "SHELL")
    ],
) -> int:
    """Print a completion script for your shell, or a man page of all commands. Save it where the shell, or
    man, looks for one, as shown below."""
    from glassgpt.cli.parser.man_page import man_page

    pages = {"bash": bash_script, "zsh": zsh_script, "fish": fish_script, "man": man_page}
    print("\n".join(pages[shell]()))
    return 0


def commands() -> Iterator[tuple[str, list[Option]]]:
    """Each command and its options. An action of `music` is a command named `music sample`."""
    for name in COMMANDS:
        command = load_command(name)
        subcommands = getattr(sys.modules[command.__module__], "SUBCOMMANDS", {})
        for action, (function, _) in subcommands.items():
            yield f"{name} {action}", read_signature(function).options
        yield name, read_signature(command).options


def values(option: Option) -> str:
    return " ".join(choices(option.value_types[0]))


def bash_script() -> Iterator[str]:
    """Offer the words that fit: commands, options or an option's choices; otherwise files."""
    yield "_glassgpt() {"
    yield f'  local words="{" ".join(COMMANDS)} --help --version" typed="${{COMP_WORDS[*]:1:COMP_CWORD}} "'
    yield '  case "$typed" in'
    for name, options in commands():
        names = " ".join(word for option in options if not option.is_positional for word in option.names)
        positionals = " ".join(values(option) for option in options if option.is_positional)
        yield f'    "{name} "*) words="{names} --help {positionals}"'
        yield '      case "${COMP_WORDS[COMP_CWORD-1]}" in'
        for option in options:
            if not option.is_positional and values(option):
                yield f'        {"|".join(option.names)}) words="{values(option)}";;'
        yield "      esac;;"
    yield "  esac"
    yield '  COMPREPLY=($(compgen -W "$words" -- "${COMP_WORDS[COMP_CWORD]}"))'
    yield "}"
    yield "complete -o default -F _glassgpt glassgpt"


def zsh_script() -> Iterator[str]:
    yield "#compdef glassgpt"
    yield "_glassgpt() {"
    yield "  local -a names=("
    yield from (f"    {shlex.quote(f'{name}:{entry.summary}')}" for name, entry in COMMANDS.items())
    yield "  )"
    yield "  if (( CURRENT == 2 )); then _describe command names; return; fi"
    yield '  local typed="${(j: :)words[2,CURRENT]} "'
    yield "  shift words; (( CURRENT-- ))"
    yield '  case "$typed" in'
    for name, options in commands():
        yield f'    "{name} "*) {"shift words; (( CURRENT-- )); " if " " in name else ""}_arguments \\'
        for option in options:
            star = "*" if option.is_repeatable else ""
            action = f":{option.name}:{f'({values(option)})' if values(option) else '_files'}"
            text = describe(option).replace("[", "(").replace("]", ")").replace(":", "\\:")
            for word in option.names:
                spec = "" if option.is_positional else f"{word}[{text}]"
                yield f"      {shlex.quote(star + spec + ('' if option.is_switch else action))} \\"
        yield "      '--help[show this help and exit]';;"
    yield "  esac"
    yield "}"
    yield 'if [[ $funcstack[1] == _glassgpt ]]; then _glassgpt "$@"; else compdef _glassgpt glassgpt; fi'


def fish_script() -> Iterator[str]:
    for name, entry in COMMANDS.items():
        yield f"complete -c glassgpt -n __fish_use_subcommand -a {name} -d {fish_quote(entry.summary)}"
    for name, options in commands():
        seen = "; and ".join(f"__fish_seen_subcommand_from {word}" for word in name.split())
        for option in options:
            line = f"complete -c glassgpt -n {fish_quote(seen)}"
            value = f" -xa {fish_quote(values(option))}" if values(option) else " -r"
            if not option.is_positional:
                short = f" -s {option.flag.short[1:]}" if option.flag.short is not None else ""
                line += f"{short} -l {option.name[2:]}"
                yield f"{line}{'' if option.is_switch else value} -d {fish_quote(describe(option))}"
            elif values(option):
                yield line + value


def fish_quote(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
