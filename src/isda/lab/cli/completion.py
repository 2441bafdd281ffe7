"""The command ``isda completion``: shell scripts that complete commands, options and their values."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

import tyro

from isda.lab.cli.help import ALIASES, HELP_ALL, Option, options_of

BASH = """\
# Completion of isda for bash.
_isda() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" previous="${{COMP_WORDS[COMP_CWORD-1]}}" words="" key
  local command="${{COMP_WORDS[1]}}"
  case "$command" in {groups}) [ "$COMP_CWORD" -gt 2 ] && command="$command ${{COMP_WORDS[2]}}" ;; esac
  [ "$COMP_CWORD" -eq 1 ] && command=""
  # The values of an option, else the options of the command.
  for key in "$command $previous" "$command"; do
    case "$key" in
{cases}
    esac
    [ -n "$words" ] && break
  done
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _isda isda
"""
ZSH = """\
#compdef isda
# Completion of isda for zsh.
_isda() {{
  local current="${{words[CURRENT]}}" previous="${{words[CURRENT-1]}}" command="${{words[2]}}" list="" key
  case "$command" in {groups}) [ "$CURRENT" -gt 3 ] && command="$command ${{words[3]}}" ;; esac
  [ "$CURRENT" -eq 2 ] && command=""
  # The values of an option, else the options of the command.
  for key in "$command $previous" "$command"; do
    case "$key" in
{cases}
    esac
    [ -n "$list" ] && break
  done
  [ -n "$list" ] && compadd -- ${{=list}}
  case "$current" in -*) ;; *) _files ;; esac
}}
_isda "$@"
"""


def completion(shell: tyro.conf.Positional[Literal["bash", "zsh"]]) -> None:
    """Print a shell script that completes commands and options.

    ``isda completion bash > ~/.local/share/bash-completion/completions/isda``, or for zsh
    ``isda completion zsh > ~/.zfunc/_isda`` with that folder in $fpath.

    Args:
        shell: bash or zsh.
    """
    print(completion_script(shell), end="")


def completion_script(shell: Literal["bash", "zsh"]) -> str:
    """The script of a shell: what may follow each command, or an option that takes one of several values."""
    from isda.lab.cli.main import COMMANDS, GROUPS, HIDDEN, command

    names = [name for name in COMMANDS if name not in HIDDEN]
    template, variable = (BASH, "words") if shell == "bash" else (ZSH, "list")
    cases = [_case("", [*names, "--help", "--version"])]
    cases += [_case(group, [*members, "--help"]) for group, members in GROUPS.items()]
    called = [(name, name) for name in names if name not in GROUPS]
    called += [(f"{group} {name}", f"{group}.{name}") for group, members in GROUPS.items() for name in members]
    for words, name in called:
        options = options_of(command(name))
        cases.append(_case(words, list(_option_words(options))))
        cases += [_case(f"{words} {option}", values) for option, values in _values(options)]
    lines = "\n".join(f'      {pattern}) {variable}="{" ".join(values)}" ;;' for pattern, values in cases)
    return template.format(groups="|".join(GROUPS), cases=lines)


def _case(words: str, values: list[str]) -> tuple[str, list[str]]:
    return f'"{words}"', values


def _option_words(options: list[Option]) -> Iterator[str]:
    """The options of a command and their other names."""
    known = {option.name for option in options if not option.positional}
    for option in options:
        if option.positional:
            yield from _choices(option)
        else:
            yield option.words.split()[0]
    yield from (f"--{alias}" for alias, names in ALIASES.items() if alias not in known and known & set(names))
    yield from ("--help", HELP_ALL)


def _values(options: list[Option]) -> Iterator[tuple[str, list[str]]]:
    for option in options:
        if not option.positional and (values := _choices(option)):
            yield option.words.split()[0], values


def _choices(option: Option) -> list[str]:
    """The values of an option that takes one of several: those of its metavar {A,B}."""
    match = re.search(r"\{([^}]*)\}", option.words)
    return [] if match is None else match[1].split(",")
