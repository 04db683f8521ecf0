"""Models of the Hugging Face hub by name: `gpt2`, or `owner/name`, or `owner/name@revision`.

They lie in the cache of huggingface_hub, so that a model which `transformers` fetched is found here, and the
other way round. A complete copy in the cache is used without asking the network.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from glassgpt.errors import FileFormatError, ModelNotFoundError, UserError
from glassgpt.weights.download import RemoteFile, download, is_network_error
from glassgpt.weights.huggingface import PICKLE, PICKLE_INDEX, SAFETENSORS, SAFETENSORS_INDEX, read_config
from glassgpt.weights.safe import inside, read_json

KNOWN = {
    "gpt2": "openai-community/gpt2",
    "gpt2-medium": "openai-community/gpt2-medium",
    "gpt2-large": "openai-community/gpt2-large",
    "gpt2-xl": "openai-community/gpt2-xl",
    "distilgpt2": "distilbert/distilgpt2",
}
TIMEOUT = 5.0  # seconds for the hub's first answer
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[\w./-]+)?")
_TOKENIZERS = (("tokenizer.json",), ("vocab.json", "merges.txt"))
PARTS = ("config", "tokenizer", "weights")  # of a model; the config always comes along


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
) -> Path:
    """The folder in the cache that holds these parts of the model, downloading what of them is missing."""
    from huggingface_hub import constants

    short, _, revision = name.partition("@")
    repo = KNOWN.get(short, short)
    revision = revision if revision else "main"
    cache = Path(constants.HF_HUB_CACHE if cache is None else cache)
    endpoint = constants.ENDPOINT if endpoint is None else endpoint
    # `transformers` caches a published model under whichever of its two names it was asked for.
    copies = [cached(alias, revision, cache, parts) for alias in dict.fromkeys((repo, short))]
    copy = next((found for found in copies if found is not None), None)
    if copy is not None and ("tokenizer" not in parts or has_tokenizer(copy)):
        return copy
    if offline or constants.HF_HUB_OFFLINE:
        if copy is not None:
            return copy
        raise ModelNotFoundError(f"{name} is not in the cache {cache}, and offline mode is on. {_by_hand()}")
    try:
        return _Repository(repo, revision, endpoint, cache).fetch(parts)
    except UserError:
        raise
    except Exception as error:
        if not is_network_error(error):
            raise _explained(error, name, repo, revision) from None
        if copy is not None:
            return copy
        raise ModelNotFoundError(
            f"{name} is not in the cache and the hub cannot be reached at {endpoint} "
            f"({type(error).__name__}). {_by_hand()}"
        ) from None


def cached(repo: str, revision: str, cache: Path, parts: Collection[str] = PARTS) -> Path | None:
    """The folder of a copy, if the cache has one, with all its weights where they are among the parts.

    A tokenizer is not asked for: there are models without one, and their copies are complete too.
    """
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(repo, "config.json", cache_dir=cache, revision=revision)
    if not isinstance(found, str):
        return None
    folder = Path(found).parent
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
            return all(inside(folder, shard).is_file() for shard in _shards(folder / index))
    return False


def has_tokenizer(folder: Path) -> bool:
    return any(all((folder / name).is_file() for name in names) for names in _TOKENIZERS)


def _shards(index: Path) -> list[str]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict):
        raise FileFormatError(f"{index} has no weight_map. Get the file again.")
    return sorted({inside(index.parent, name).name for name in weight_map.values()})


class _Repository:
    """One revision of one model on the hub."""

    def __init__(self, repo: str, revision: str, endpoint: str, cache: Path) -> None:
        from huggingface_hub import HfApi
        from huggingface_hub.file_download import repo_folder_name

        self.repo, self.endpoint, self.cache = repo, endpoint, cache
        info = HfApi(endpoint=endpoint).model_info(
            repo, revision=revision, timeout=TIMEOUT, files_metadata=True
        )
        if info.sha is None or re.fullmatch(r"[0-9a-f]{40}", info.sha) is None:
            raise FileFormatError(f"{endpoint} names no commit for {repo}; it is not the hub.")
        self.commit, self.revision = info.sha, revision
        siblings = info.siblings if info.siblings is not None else []
        self.files: dict[str, Any] = {sibling.rfilename: sibling for sibling in siblings}
        self.folder = repo_folder_name(repo_id=repo, repo_type="model")

    def fetch(self, parts: Collection[str]) -> Path:
        """Small files first: weights in the cache then mean that the rest is there too."""
        if "config.json" not in self.files:
            raise ModelNotFoundError(f"{self.repo} has no config.json. It is not a model of this kind.")
        config = self._get("config.json")
        read_config(config)  # refuse another architecture before gigabytes of it are fetched
        if "tokenizer" in parts:
            for name in next((names for names in _TOKENIZERS if all(n in self.files for n in names)), ()):
                self._get(name)
        if "weights" in parts:
            if "generation_config.json" in self.files:
                self._get("generation_config.json")
            for name in self._weights():
                self._get(name)
        if "weights" in parts or cached(self.repo, self.revision, self.cache) is None:
            self._remember_revision()  # a branch that stands for a whole copy is not turned to a part of one
        return config.parent

    def _weights(self) -> list[str]:
        for whole, index in ((SAFETENSORS, SAFETENSORS_INDEX), (PICKLE, PICKLE_INDEX)):
            if whole in self.files:
                return [whole]
            if index in self.files:
                return _shards(self._get(index))
        raise ModelNotFoundError(f"{self.repo} has neither {SAFETENSORS} nor {PICKLE}. Choose another model.")

    def _get(self, name: str) -> Path:
        """The file's place in the cache, once it is there and its hash is right."""
        from huggingface_hub import hf_hub_download, hf_hub_url

        if name not in self.files:
            raise ModelNotFoundError(f"{self.repo} lacks {name}, which its index names.")
        described = self.files[name]
        hash = described.lfs.sha256 if described.lfs is not None else described.blob_id
        size = described.lfs.size if described.lfs is not None else described.size
        if size is None or hash is None or re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", hash) is None:
            raise FileFormatError(
                f"{self.endpoint} gives no hash for {name}; it does not behave like the hub."
            )
        url = hf_hub_url(self.repo, name, revision=self.commit, endpoint=self.endpoint)
        locks = self.cache / ".locks" / self.folder
        blob = download(
            RemoteFile(name, url, size, hash), self.cache / self.folder / "blobs", locks / f"{hash}.lock"
        )
        # The blob is there, so this only makes the link to it from the folder of the commit.
        place = Path(
            hf_hub_download(
                self.repo, name, revision=self.commit, cache_dir=self.cache, endpoint=self.endpoint
            )
        )
        if not place.samefile(blob) and place.stat().st_size != size:
            raise FileFormatError(f"{place} is not the file that the hub describes. Remove it and try again.")
        return place

    def _remember_revision(self) -> None:
        """Note which commit a branch or tag stood for: offline, the cache is all there is to ask."""
        if self.revision == self.commit:
            return
        ref = self.cache / self.folder / "refs" / self.revision
        ref.parent.mkdir(parents=True, exist_ok=True)
        ref.write_text(self.commit)


def _explained(error: Exception, name: str, repo: str, revision: str) -> Exception:
    """What the hub's refusal means to the user, or the error itself where it is none of the known ones."""
    from huggingface_hub import errors

    reasons: list[tuple[type[Exception], Callable[[], str]]] = [
        (errors.GatedRepoError, lambda: "asks for its terms to be accepted; log in with `hf auth login`."),
        (errors.RepositoryNotFoundError, lambda: "is not on the hub, or is private. Check the spelling."),
        (
            errors.RevisionNotFoundError,
            lambda: f"has no revision {revision!r}. Leave out @ and the rest.",
        ),
        (errors.HFValidationError, lambda: "is no valid name. Give owner/name."),
        (errors.HfHubHTTPError, lambda: f"cannot be had: {str(error).strip().splitlines()[0]}. Try later."),
        (OSError, lambda: f"cannot be stored: {error}. Check the cache folder."),
    ]
    for kind, reason in reasons:
        if isinstance(error, kind):
            subject = repo if name == repo else f"{name} ({repo})"
            return ModelNotFoundError(f"{subject} {reason()}")
    return error


def _by_hand() -> str:
    return (
        "By hand: put the model's config.json, model.safetensors and tokenizer.json into a folder "
        "and give that folder as the model."
    )
