"""Models of the Hugging Face hub by name: `gpt2`, or `owner/name`, or `owner/name@revision`.

They are stored in huggingface_hub's cache, which is shared with `transformers`. A complete copy in the cache
is used without network access. Downloads are verified by their hash, which is pinned for published models.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from glassgpt.errors import FileFormatError, ModelNotFoundError, SettingError, UserError, short_repr
from glassgpt.files import atomic_symlink, atomic_write, path_inside, read_json
from glassgpt.progress import Progress, no_progress
from glassgpt.weights.download import RemoteFile, download, get_metadata, is_network_error
from glassgpt.weights.huggingface import PICKLE, PICKLE_INDEX, SAFETENSORS, SAFETENSORS_INDEX, read_config

KNOWN = {
    "gpt2": "openai-community/gpt2",
    "gpt2-medium": "openai-community/gpt2-medium",
    "gpt2-large": "openai-community/gpt2-large",
    "gpt2-xl": "openai-community/gpt2-xl",
    "distilgpt2": "distilbert/distilgpt2",
}
TIMEOUT = 5.0  # seconds for the hub's first response
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[\w./-]+)?")
_REVISION = re.compile(r"\w[\w.-]*(/\w[\w.-]*)*")  # main, v1.0, refs/pr/1; it is also a path in the cache


@dataclass(frozen=True)
class Pin:
    """The commit of a name, and the SHA-256 of its files where it is known."""

    commit: str
    sha256: dict[str, str]


# Confirmed by several independent projects; the hashes of medium and large are not confirmed.
PINNED = {
    "openai-community/gpt2": Pin(
        "607a30d783dfa663caf39e06633721c8d4cfcd7e",
        {
            "tokenizer.json": "8414cab924d8b9b33013f0d221c5862f365ee9be39c5c2bfae8a5a9e970478a6",
            "vocab.json": "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
            "merges.txt": "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
            "config.json": "0daed7749b4f02b8f76240d5444551d7b08712dab4d0adb8239c56ba823bb7b4",
            SAFETENSORS: "248dfc3911869ec493c76e65bf2fcf7f615828b0254c12b473182f0f81d3a707",
        },
    ),
    "openai-community/gpt2-medium": Pin("6dcaa7a952f72f9298047fd5137cd6e4f05f41da", {}),
    "openai-community/gpt2-large": Pin("32b71b12589c2f8d625668d2335a01cac3249519", {}),
    "openai-community/gpt2-xl": Pin(
        "15ea56dee5df4983c59b2538573817e1667135e2",
        {SAFETENSORS: "0f8b28eb05a8075f48b61b6f35332978c74fc7763fa9fb4051a1c30511736a6a"},
    ),
}
_TOKENIZERS = (("tokenizer.json",), ("vocab.json", "merges.txt"))
PARTS = ("config", "tokenizer", "weights")  # of a model; the config is always included


def is_hub_name(name: str) -> bool:
    """Whether the name is one of the known ones or has the form owner/name[@revision]."""
    return name.split("@")[0] in KNOWN or _NAME.fullmatch(name) is not None


def fetch(
    name: str,
    parts: Collection[str] = PARTS,
    *,
    offline: bool = False,
    endpoint: str | None = None,
    cache: str | Path | None = None,
    progress: Progress = no_progress,
) -> Path:
    """The folder in the cache with these parts of the model; downloads what is missing."""
    if "HF_ENDPOINT" in os.environ:  # with some values huggingface_hub cannot be imported
        check_endpoint(os.environ["HF_ENDPOINT"])
    from huggingface_hub import constants

    short, _, revision = name.partition("@")
    repo = KNOWN.get(short, short)
    pin = PINNED.get(repo)
    if revision and _REVISION.fullmatch(revision) is None:
        raise ModelNotFoundError(
            f"{name}: {revision!r} is not a branch, tag or commit. Leave out @ and the rest."
        )
    # A copy that was downloaded from the branch is fine as well.
    revisions = [revision] if revision else ["main"] if pin is None else [pin.commit, "main"]
    cache = Path(constants.HF_HUB_CACHE if cache is None else cache)
    endpoint = constants.ENDPOINT if endpoint is None else endpoint
    # `transformers` caches a published model under either of its two names.
    aliases = dict.fromkeys((repo, short))
    copies = [cached(alias, at, cache, parts) for at in revisions for alias in aliases]
    copy = next((copy for copy in copies if copy is not None), None)
    if copy is not None and ("tokenizer" not in parts or has_tokenizer(copy)):
        return copy
    if offline or constants.HF_HUB_OFFLINE:
        if copy is not None:
            return copy
        raise ModelNotFoundError(
            f"{name} is not in the cache {cache}, and offline mode is on. {_manual_download_hint()}"
        )
    check_endpoint(endpoint)
    try:
        return _Repository(repo, revisions, endpoint, cache, progress).fetch(parts)
    except UserError:
        raise
    except Exception as error:
        if not is_network_error(error):
            raise _translate_error(error, name, repo, revisions[0]) from None
        if copy is not None:
            return copy
        raise ModelNotFoundError(
            f"{name} is not in the cache and the hub cannot be reached at {endpoint} "
            f"({type(error).__name__}). {_manual_download_hint()}"
        ) from None


def check_endpoint(endpoint: str) -> None:
    """Whether the hub's address is one. Those that are none raise errors anywhere in the HTTP library."""
    try:
        parts = urlsplit(endpoint)
        host = (parts.hostname or "").encode("idna")
        valid = parts.scheme in ("http", "https") and host and parts.port != 0 and endpoint.isprintable()
    except ValueError:  # among them UnicodeError
        valid = False
    if not valid:
        raise SettingError(
            f"the hub's address {short_repr(endpoint)} is not a URL such as https://huggingface.co. "
            "Correct or unset HF_ENDPOINT."
        )


def cached(repo: str, revision: str, cache: Path, parts: Collection[str] = PARTS) -> Path | None:
    """The folder of a cached copy, complete with weights if they are among the parts, or None.

    A tokenizer is not required: a copy of a model without one is complete as well.
    """
    from huggingface_hub import try_to_load_from_cache

    config = try_to_load_from_cache(repo, "config.json", cache_dir=cache, revision=revision)
    if not isinstance(config, str):
        return None
    folder = Path(config).parent
    try:
        return folder if "weights" not in parts or has_weights(folder) else None
    except FileFormatError:
        return None


def has_weights(folder: Path) -> bool:
    """Whether every weight file is there; FileFormatError where an index of shards cannot be read."""
    if (folder / SAFETENSORS).is_file() or (folder / PICKLE).is_file():
        return True
    for index in (SAFETENSORS_INDEX, PICKLE_INDEX):
        if (folder / index).is_file():
            return all(path_inside(folder, shard).is_file() for shard in _shards(folder / index))
    return False


def has_tokenizer(folder: Path) -> bool:
    return any(all((folder / name).is_file() for name in names) for names in _TOKENIZERS)


def _shards(index: Path) -> list[str]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict):
        raise FileFormatError(f"{index} has no weight_map. Download the file again.")
    return sorted({path_inside(index.parent, name).name for name in weight_map.values()})


class _Repository:
    """A model on the hub at the first of the given revisions."""

    def __init__(
        self, repo: str, revisions: Sequence[str], endpoint: str, cache: Path, progress: Progress
    ) -> None:
        from huggingface_hub.file_download import repo_folder_name
        from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

        validate_repo_id(repo)
        self.repo, self.endpoint, self.cache, self.progress = repo, endpoint, cache, progress
        self.revision, *self.others = revisions
        at = quote(self.revision, safe="")
        response = get_metadata(f"{endpoint.rstrip('/')}/api/models/{repo}/revision/{at}?blobs=true", TIMEOUT)
        self.commit, self.files = self._parse_model_info(response)
        if re.fullmatch(r"[0-9a-f]{40}", self.revision) is not None and self.commit != self.revision:
            raise FileFormatError(
                f"{endpoint} returned another commit than {self.revision}; it is not the hub."
            )
        self.folder = repo_folder_name(repo_id=repo, repo_type="model")
        pin = PINNED.get(repo)
        self.sha256 = pin.sha256 if pin is not None and pin.commit == self.commit else {}

    def _parse_model_info(self, response: bytes) -> tuple[str, dict[str, dict[str, Any]]]:
        """Commit and files of the model, from the response of the hub, or of whatever is at its address."""
        try:
            info = json.loads(response)
            commit, files = info["sha"], {file["rfilename"]: file for file in info["siblings"]}
            if re.fullmatch(r"[0-9a-f]{40}", commit) is None:
                raise ValueError
            "".join(files).encode()  # all names are strings without half a surrogate pair
        except (ValueError, TypeError, KeyError, RecursionError):
            kind = "a web page" if response.lstrip()[:1] == b"<" else "an invalid response"
            raise FileFormatError(
                f"{self.endpoint} returned {kind}, so it is not the hub. If this network requires a login, "
                "open any page in a browser first."
            ) from None
        return commit, files

    def fetch(self, parts: Collection[str]) -> Path:
        """Small files first: if the cache has the weights, it has the rest."""
        if "config.json" not in self.files:
            raise ModelNotFoundError(f"{self.repo} has no config.json. It is not a GPT-2.")
        config = self._get("config.json")
        read_config(config)  # reject another architecture before downloading gigabytes
        if "tokenizer" in parts:
            for name in next((names for names in _TOKENIZERS if all(n in self.files for n in names)), ()):
                self._get(name)
        if "weights" in parts:
            if "generation_config.json" in self.files:
                self._get("generation_config.json")
            for name in self._weights():
                self._get(name)
        if "weights" in parts or cached(self.repo, self.revision, self.cache) is None:
            self._remember_revision()  # a ref to a complete copy must not move to a partial one
        return config.parent

    def _weights(self) -> list[str]:
        for single, index in ((SAFETENSORS, SAFETENSORS_INDEX), (PICKLE, PICKLE_INDEX)):
            if single in self.files:
                return [single]
            if index in self.files:
                return _shards(self._get(index))
        raise ModelNotFoundError(f"{self.repo} has neither {SAFETENSORS} nor {PICKLE}. Choose another model.")

    def _get(self, name: str) -> Path:
        """Download and verify the file; returns its path in the cache."""
        from huggingface_hub import hf_hub_url

        if name not in self.files:
            raise ModelNotFoundError(f"{self.repo} has no {name}, which its index names.")
        hash, size = self._identity(name)
        known = self.sha256.get(name)
        if known is not None and len(hash) == 64 and hash != known:
            raise self._wrong_hash_error(name, hash)
        url = hf_hub_url(self.repo, name, revision=self.commit, endpoint=self.endpoint)
        locks = self.cache / ".locks" / self.folder
        blob = download(
            RemoteFile(name, url, size, hash),
            self.cache / self.folder / "blobs",
            locks / f"{hash}.lock",
            self.progress,
        )
        if known is not None and len(hash) == 40:  # a small file, which the hub identifies by its SHA-1
            actual = hashlib.sha256(blob.read_bytes()).hexdigest()
            if actual != known:
                blob.unlink()
                raise self._wrong_hash_error(name, actual)
        place = self.cache / self.folder / "snapshots" / self.commit / name
        place.parent.mkdir(parents=True, exist_ok=True)
        link(place, blob)
        return place

    def _identity(self, name: str) -> tuple[str, int]:
        """Hash and size of a file according to the hub."""
        info = self.files[name]
        lfs = info.get("lfs")
        hash, size = (
            (lfs.get("sha256"), lfs.get("size"))
            if isinstance(lfs, dict)
            else (info.get("blobId"), info.get("size"))
        )
        valid = isinstance(hash, str) and re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", hash) is not None
        if not valid or not isinstance(size, int) or size < 0:
            raise FileFormatError(f"{self.endpoint} gives no hash for {name}; it is not the hub.")
        return str(hash), size

    def _wrong_hash_error(self, name: str, found: str) -> FileFormatError:
        return FileFormatError(
            f"{name} of {self.repo} is not the published one: its SHA-256 is {found[:12]}..., known is "
            f"{self.sha256[name][:12]}.... Do not use this hub ({self.endpoint})."
        )

    def _remember_revision(self) -> None:
        """Record the commit of a branch or tag, for offline use."""
        for revision in (self.revision, *self.others):
            ref = self.cache / self.folder / "refs" / revision
            # An existing ref of a branch stays.
            if revision != self.commit and not (revision in self.others and ref.exists()):
                with atomic_write(ref) as part:
                    part.write_text(self.commit)


def link(place: Path, blob: Path) -> None:
    """Link the file's name in the snapshot to the verified blob."""
    if place.exists() and place.samefile(blob):
        return
    atomic_symlink(place, blob)


def _translate_error(error: Exception, name: str, repo: str, revision: str) -> Exception:
    """The hub's error as a message for the user, or the error itself if it is an unknown one."""
    from huggingface_hub import errors

    reasons: list[tuple[type[Exception], Callable[[], str]]] = [
        (errors.GatedRepoError, lambda: "requires you to accept its terms; log in with `hf auth login`."),
        (errors.RepositoryNotFoundError, lambda: "is not on the hub, or is private. Check the spelling."),
        (
            errors.RevisionNotFoundError,
            lambda: f"has no revision {revision!r}. Leave out @ and the rest.",
        ),
        (errors.HFValidationError, lambda: "is not a valid name. Give owner/name."),
        (
            errors.HfHubHTTPError,
            lambda: f"cannot be downloaded: {str(error).strip().splitlines()[0]}. Try later.",
        ),
        (OSError, lambda: f"cannot be stored: {error}. Check the cache folder."),
    ]
    for kind, reason in reasons:
        if isinstance(error, kind):
            subject = repo if name == repo else f"{name} ({repo})"
            return ModelNotFoundError(f"{subject} {reason()}")
    return error


def _manual_download_hint() -> str:
    return (
        "To download it by hand, put the model's config.json, model.safetensors and tokenizer.json into a "
        "folder and pass that folder as the model."
    )
