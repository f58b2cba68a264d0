"""Fetches a model from the Hugging Face hub into its cache: weights, configuration and tokenizers, never code."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from huggingface_hub import constants, errors, hf_hub_download, snapshot_download

from cli.models.pulling import Say, require_free, shown_bytes
from engine.models.paths import HUB_FILES, HUB_FILES_IN_ANOTHER_FORM
from jobs.counted import counted
from jobs.errors import InputError, ServiceError

if TYPE_CHECKING:
    from huggingface_hub.file_download import DryRunFileInfo

_GGUF = ".gguf"
_HOSTS = ("huggingface.co", "hf.co", "www.huggingface.co")
_ADDRESS = re.compile(r"/(?P<repo>[^/]+/[^/]+)(/(resolve|blob|tree)/(?P<revision>[^/]+)(?P<file>/[^/].*)?)?/?")
_EXAMPLES = "org/name, org/name@revision, org/name/FILE.gguf, its https://huggingface.co/… address, or smollm2"


@dataclass(frozen=True, slots=True, kw_only=True)
class HubModel:
    """A repository of the hub, or one GGUF file of it."""

    repo: str
    file: str | None = None
    revision: str | None = None
    """None: the main branch."""

    @property
    def name(self) -> str:
        return self.repo + (f"/{self.file}" if self.file else "") + (f"@{self.revision}" if self.revision else "")


def parse_hub_model(model: str, revision: str | None) -> HubModel:
    """Parse the argument of `models pull`. Raises InputError."""
    path, at, after = model.partition("@")
    pinned: str | None = after or None
    if model.startswith(("http://", "https://")):
        path, pinned = _of_address(model)
    elif at and not pinned:
        raise InputError(f"{model} names no revision after @; give a branch, tag or commit, or leave out the @")
    org, _, rest = path.strip("/").partition("/")
    name, _, file = rest.partition("/")
    if not org or not name or org in {".", "..", "~"} or (file and not file.lower().endswith(_GGUF)):
        raise InputError(f"{model!r} cannot be pulled; give {_EXAMPLES}")
    if pinned and revision and pinned != revision:
        raise InputError(f"{model} names the revision {pinned} and --revision {revision}; give one of them")
    return HubModel(repo=f"{org}/{name}", file=file or None, revision=pinned or revision)


def pull_from_hub(model: HubModel, *, say: Say) -> Path:
    """Download a model into the hub's cache, where workers find it; return its folder or file.

    `say` gets size and target first. The token is that of the environment (HF_TOKEN). Raises InputError or
    ServiceError, in one sentence.
    """
    with _hub_errors_as_sentences(model):
        files = _planned(model)
        _require_room(files, say=say, model=model)
        return _fetched(model)


def _of_address(url: str) -> tuple[str, str | None]:
    """Return the path org/name[/FILE] and the revision of a URL of the hub. Raises InputError."""
    parts = urlsplit(url)
    if parts.hostname not in (*_HOSTS, urlsplit(constants.ENDPOINT).hostname):
        raise InputError(
            f"{url} is not an address of the hub. Download the file by other means, and give its path as the model."
        )
    match = _ADDRESS.fullmatch(parts.path)
    if match is None:
        raise InputError(f"{url} is not the address of a model or of one of its files; give {_EXAMPLES}")
    revision = match["revision"]
    return unquote(match["repo"] + (match["file"] or "")), None if revision is None else unquote(revision)


def _planned(model: HubModel) -> Sequence[DryRunFileInfo]:
    """Return the files of a model with their sizes; nothing is downloaded."""

    if model.file is not None:
        return [hf_hub_download(model.repo, model.file, revision=model.revision, dry_run=True)]
    files = snapshot_download(
        model.repo,
        revision=model.revision,
        allow_patterns=[*HUB_FILES, f"*{_GGUF}"],
        ignore_patterns=HUB_FILES_IN_ANOTHER_FORM,
        dry_run=True,
    )
    others = [file for file in files if not file.filename.lower().endswith(_GGUF)]
    if any(file.filename.endswith(".safetensors") for file in others):
        return others
    ggufs = [file for file in files if file.filename.lower().endswith(_GGUF)]
    if ggufs:
        listed = ", ".join(f"{file.filename} ({shown_bytes(file.file_size or 0)})" for file in ggufs)
        raise InputError(
            f"{model.repo} has GGUF files; pull one of them, such as {model.repo}/{ggufs[0].filename}: {listed}"
        )
    raise InputError(f"{model.name} has neither safetensors nor GGUF files: Tokenmill cannot serve it")


def _require_room(files: Sequence[DryRunFileInfo], *, say: Say, model: HubModel) -> None:
    """Report size and target. Raises ServiceError if the disk has too little space."""
    folder = Path(constants.HF_HUB_CACHE)
    total = sum(file.file_size or 0 for file in files)
    missing = sum(file.file_size or 0 for file in files if file.will_download)
    action = f"downloading {shown_bytes(missing)}" if missing else "already complete"
    say(
        f"{model.name} at {files[0].commit_hash[:12]}: {counted(len(files), 'file')}, "
        f"{shown_bytes(total)}; {action} {'to' if missing else 'in'} {folder}"
    )
    folder.mkdir(parents=True, exist_ok=True)
    require_free(folder, missing)


def _fetched(model: HubModel) -> Path:
    if model.file is not None:
        return Path(hf_hub_download(model.repo, model.file, revision=model.revision))
    return Path(
        snapshot_download(
            model.repo,
            revision=model.revision,
            allow_patterns=HUB_FILES,
            ignore_patterns=HUB_FILES_IN_ANOTHER_FORM,
        )
    )


@contextmanager
def _hub_errors_as_sentences(model: HubModel) -> Iterator[None]:
    try:
        yield
    except (InputError, ServiceError):
        raise
    except Exception as error:
        raise _sentence(model, list(_causes(error))) from error


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and its causes, the root cause last."""
    while error is not None:
        yield error
        error = error.__cause__


def _sentence(model: HubModel, causes: Sequence[BaseException]) -> Exception:
    """Return a one-sentence error for an error of the hub's client, whose own messages have many lines."""
    hub = constants.ENDPOINT
    sentences: Sequence[tuple[Any, Exception]] = (
        (
            errors.GatedRepoError,
            InputError(f"{model.repo} is gated: accept its terms at {hub}/{model.repo}, and set HF_TOKEN to a token"),
        ),
        (
            errors.RepositoryNotFoundError,
            InputError(f"there is no model {model.repo} at {hub}, or HF_TOKEN may not read it. Correct one of them."),
        ),
        (errors.RevisionNotFoundError, InputError(f"{model.repo} has no revision {model.revision}")),
        (errors.RemoteEntryNotFoundError, InputError(f"{model.repo} has no file {model.file}")),
        (errors.HFValidationError, InputError(f"{model.repo!r} is not an id of the hub; give {_EXAMPLES}")),
        (errors.OfflineModeIsEnabled, InputError("HF_HUB_OFFLINE is set: unset it to download a model")),
    )
    for kind, sentence in sentences:
        if any(isinstance(cause, kind) for cause in causes):
            return sentence
    deepest = causes[-1]
    if isinstance(deepest, OSError) and not isinstance(deepest, ConnectionError) and deepest.filename is not None:
        return deepest  # of the disk
    reason = " ".join(str(deepest).split())[:200] or type(deepest).__name__
    return ServiceError(f"the hub {hub} cannot be reached, or failed: {reason}. Check the network and try again.")
