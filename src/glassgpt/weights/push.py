"""Upload a model's folder to the Hugging Face hub, with a card.

Only a model's files go: nothing hidden, no sub-folders, no links to elsewhere. All of them are one commit, so
that a reader sees the old model or the new one.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from glassgpt.errors import FileFormatError, SettingError, UserError
from glassgpt.files import expand_user, read_text
from glassgpt.progress import Progress, no_progress
from glassgpt.weights.download import is_network_error
from glassgpt.weights.hub import check_endpoint
from glassgpt.weights.model_card import (
    CARD,
    MAX_CARD,
    CardFacts,
    base_of,
    check_card,
    check_license,
    make_card,
)
from glassgpt.weights.registry import detect_format, is_model_file, load_config

NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
FORMATS = ("hf", "packed", "adapter", "peft")
NOT_PUSHED = ("log.jsonl", "report.html", ".gitattributes", "MODEL_CARD.md")


@dataclass(frozen=True)
class Upload:
    """What a push sends."""

    name: str
    format: str
    files: list[tuple[Path, int]]  # with their sizes
    card: str
    new_card: bool
    notes: list[str]

    @property
    def n_bytes(self) -> int:
        return sum(size for _, size in self.files) + (len(self.card.encode()) if self.new_card else 0)


def plan_push(folder: str | Path, name: str, license: str | None = None) -> Upload:
    """Check the folder and the name, and make the card. Nothing is sent."""
    path = expand_user(folder)
    if NAME.fullmatch(name) is None or ".." in name or "--" in name:
        raise SettingError(f"{name!r} is not a name on the hub. Write OWNER/NAME, such as me/my-gpt2.")
    check_license(license)
    if not path.is_dir():
        raise SettingError(
            f"{path} is not a folder. Convert the model first: glassgpt convert {folder} my-model"
        )
    format = detect_format(path)
    if format not in FORMATS:
        raise SettingError(
            f"{path} has the format {format}, which the hub's programs do not open. Convert it first: "
            f"glassgpt convert {folder} my-model"
        )
    files = sorted(
        entry for entry in path.iterdir()
        if entry.name not in (*NOT_PUSHED, CARD) and is_model_file(entry) and entry.is_file()
    )  # fmt: skip
    for file in files:
        if file.resolve().parent != path.resolve():
            raise SettingError(f"{file} is a link to elsewhere. Copy the file into the folder.")
    notes = []
    if format == "packed":
        notes.append(
            "transformers does not open int8 or int4 folders; glassgpt convert DIR my-model --dtype float16"
        )
    card, is_new = (path / CARD, False) if (path / CARD).is_file() else (None, True)
    if card is not None:
        text = read_text(card, limit=MAX_CARD)
        check_card(text, card)
        files = sorted([*files, card])
    else:
        base = base_of(path, format)
        if format in ("adapter", "peft") and base is None:
            notes.append("its base model is not one of the hub: say in README.md where to get it")
        if license is None:
            notes.append("the card names no license: add --license")
        facts = CardFacts(name, format, load_config(path), base, _is_classifier(path), license=license)
        text = make_card(facts, path)
    return Upload(name, format, [(file, file.stat().st_size) for file in files], text, is_new, notes)


def push(
    upload: Upload,
    *,
    private: bool = False,
    message: str | None = None,
    endpoint: str | None = None,
    token: str | None = None,
    progress: Progress = no_progress,
) -> str:
    """Make the repository if there is none, and send all files in one commit; returns its address."""
    if "HF_ENDPOINT" in os.environ:  # with some values huggingface_hub cannot be imported
        check_endpoint(os.environ["HF_ENDPOINT"])
    from huggingface_hub import CommitOperationAdd, HfApi, constants
    from huggingface_hub.utils import disable_progress_bars  # type: ignore[attr-defined]

    endpoint = constants.ENDPOINT if endpoint is None else endpoint
    check_endpoint(endpoint)
    api = HfApi(endpoint=endpoint, token=token, library_name="glassgpt")
    if api.token is None and token is None and _stored_token() is None:
        raise UserError("pushing needs a token of the hub. Log in with: hf auth login; or set HF_TOKEN.")
    operations = [CommitOperationAdd(path.name, str(path)) for path, _ in upload.files]
    if upload.new_card:
        operations.append(CommitOperationAdd(CARD, upload.card.encode()))
    disable_progress_bars()
    with progress(f"pushing {upload.name}", upload.n_bytes, unit="bytes") as advance:
        try:
            api.create_repo(upload.name, private=private, exist_ok=True)
            info = api.create_commit(
                upload.name, operations, commit_message=message or f"Upload {upload.name} with GlassGPT"
            )
        except UserError:
            raise
        except Exception as error:
            raise _explain(error, upload.name, endpoint) from None
        advance(upload.n_bytes)
    return str(info.repo_url)


def _stored_token() -> str | None:
    from huggingface_hub import get_token

    return get_token()


def _is_classifier(folder: Path) -> bool:
    from glassgpt.weights.huggingface import read_task

    text = read_task(folder)
    return text is not None and "labels" in text and "{target}" not in text


def _explain(error: Exception, name: str, endpoint: str) -> UserError:
    """What went wrong, and what to do, in one line."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    if is_network_error(error):
        return UserError(
            f"the hub cannot be reached at {endpoint} ({type(error).__name__}). Nothing was pushed."
        )
    if status == 401:
        return UserError("the hub refused the token. Log in again with: hf auth login; or set HF_TOKEN.")
    if status in (403, 404):
        return UserError(
            f"this token may not write to {name}. Take another owner, or a token with write access: "
            f"{endpoint}/settings/tokens"
        )
    if status is None and isinstance(error, OSError):
        return FileFormatError(f"a file could not be read: {error.strerror or error}. Nothing was pushed.")
    said = " ".join(str(error).split())[:300]
    return UserError(f"the hub refused {name}: {said if said else type(error).__name__}")
