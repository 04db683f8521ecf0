"""Conversations: how the turns of a task with roles are written, and their token ids.

    [chat]
    system = "<|system|>{text}"
    user = "<|user|>{text}"
    assistant = "<|assistant|>{text}<|endoftext|>"

The model continues after the part of `assistant` before its text, and ends where the part after it begins. It
is tuned on pairs of a user's turn and the answer; a longer conversation is the same turns one after another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from glassgpt.errors import SettingError, short_repr

if TYPE_CHECKING:
    from glassgpt.tokenizer import Tokenizer

TEXT = "{text}"
ROLES = ("system", "user", "assistant")


@dataclass(frozen=True)
class ChatFormat:
    """What is written before and after the text of each role."""

    roles: Mapping[str, tuple[str, str]]

    @classmethod
    def parse(cls, table: Mapping[str, object]) -> ChatFormat:
        roles = {}
        for role, written in table.items():
            if role not in ROLES:
                raise SettingError(f"chat has no role {short_repr(role)}; there are {', '.join(ROLES)}")
            if not isinstance(written, str) or written.count(TEXT) != 1:
                raise SettingError(f"chat.{role} is {short_repr(written)}; it must have {TEXT} once")
            before, _, after = written.partition(TEXT)
            roles[role] = (before, after)
        for role in ("user", "assistant"):
            if role not in roles:
                raise SettingError(f'chat.{role} is missing, such as {role} = "<|{role}|>{TEXT}"')
        return cls(roles)

    @property
    def pair(self) -> str:
        """A user's turn and the answer, as the format of a task."""
        user, answer = self.roles["user"], self.roles["assistant"]
        return f"{user[0]}{{source}}{user[1]}{answer[0]}{{target}}{answer[1]}"

    @property
    def lead(self) -> str:
        """A space before an answer belongs to its first word, as in `tasks.encode`."""
        return " " if self.roles["assistant"][0].endswith(" ") else ""

    def encode(self, turns: Sequence[tuple[str, str]], tokenizer: Tokenizer) -> list[int]:
        """The ids that the model continues with an answer to these turns, (role, text) each.

        Marks are tokens, texts are always ordinary text. What stands between two texts is encoded together,
        as it was for training.
        """
        ids: list[int] = []
        between = ""
        for role, text in turns:
            if role not in self.roles:
                raise SettingError(
                    f"this model has no role {short_repr(role)}; it has {', '.join(self.roles)}."
                )
            before, after = self.roles[role]
            lead = self.lead if role == "assistant" else ""
            ids += tokenizer.encode((between + before).removesuffix(lead), True)
            ids += tokenizer.encode(lead + text)
            between = after
        return ids + tokenizer.encode((between + self.roles["assistant"][0]).removesuffix(self.lead), True)

    def ending(self, tokenizer: Tokenizer) -> tuple[list[int], list[str]]:
        """The tokens and strings that end an answer."""
        end = self.roles["assistant"][1]
        ids = tokenizer.encode(end, True) if end else []
        if len(ids) == 1:
            return ids, []
        return [], [end] if end else []
