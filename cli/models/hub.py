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


def parse_hub_model(given: str, revision: str | None) -> HubModel:
    """Read what is to be pulled. Raises InputError."""
    path, at, after = given.partition("@")
    pinned: str | None = after or None
    if given.startswith(("http://", "https://")):
        path, pinned = _of_address(given)
    elif at and not pinned:
        raise InputError(f"{given} names no revision after @; give a branch, tag or commit, or leave out the @")
    org, _, rest = path.strip("/").partition("/")
    name, _, file = rest.partition("/")
    if not org or not name or org in {".", "..", "~"} or (file and not file.lower().endswith(_GGUF)):
        raise InputError(f"{given!r} is nothing that can be pulled; give {_EXAMPLES}")
    if pinned and revision and pinned != revision:
        raise InputError(f"{given} names the revision {pinned} and --revision {revision}; give one of them")
    return HubModel(repo=f"{org}/{name}", file=file or None, revision=pinned or revision)


def pull_from_hub(wanted: HubModel, *, say: Say) -> Path:
    """Fetch a model into the hub's cache, where workers find it; return its folder or file.

    `say` hears first what comes and where it goes. The token is the environment's (HF_TOKEN). Raises InputError or
    ServiceError, in one sentence.
    """
    with _hub_errors_as_sentences(wanted):
        files = _planned(wanted)
        _require_room(files, say=say, wanted=wanted)
        return _fetched(wanted)


def _of_address(given: str) -> tuple[str, str | None]:
    """Return the path org/name[/FILE] of an address of the hub, and the revision that it names."""

    parts = urlsplit(given)
    if parts.hostname not in (*_HOSTS, urlsplit(constants.ENDPOINT).hostname):
        raise InputError(f"{given} is not of the hub. Fetch the file by other means, and give its path as the model.")
    found = _ADDRESS.fullmatch(parts.path)
    if found is None:
        raise InputError(f"{given} is no address of a model or of a file of it; give {_EXAMPLES}")
    revision = found["revision"]
    return unquote(found["repo"] + (found["file"] or "")), None if revision is None else unquote(revision)


def _planned(wanted: HubModel) -> Sequence[DryRunFileInfo]:
    """Return the files that belong to what is wanted, with their sizes; nothing is fetched."""

    if wanted.file is not None:
        return [hf_hub_download(wanted.repo, wanted.file, revision=wanted.revision, dry_run=True)]
    files = snapshot_download(
        wanted.repo,
        revision=wanted.revision,
        allow_patterns=[*HUB_FILES, f"*{_GGUF}"],
        ignore_patterns=HUB_FILES_IN_ANOTHER_FORM,
        dry_run=True,
    )
    model = [file for file in files if not file.filename.lower().endswith(_GGUF)]
    if any(file.filename.endswith(".safetensors") for file in model):
        return model
    ggufs = [file for file in files if file.filename.lower().endswith(_GGUF)]
    if ggufs:
        listed = ", ".join(f"{file.filename} ({shown_bytes(file.file_size or 0)})" for file in ggufs)
        raise InputError(
            f"{wanted.repo} has GGUF files; pull one of them, such as {wanted.repo}/{ggufs[0].filename}: {listed}"
        )
    raise InputError(f"{wanted.name} has no safetensors and no GGUF file: it is nothing that is served here")


def _require_room(files: Sequence[DryRunFileInfo], *, say: Say, wanted: HubModel) -> None:
    """Say what comes and where it goes. Raises ServiceError where the disk has no room for it."""

    folder = Path(constants.HF_HUB_CACHE)
    total = sum(file.file_size or 0 for file in files)
    missing = sum(file.file_size or 0 for file in files if file.will_download)
    coming = f"{shown_bytes(missing)} of it come" if missing else "all of it is there"
    say(
        f"{wanted.name} at {files[0].commit_hash[:12]}: {counted(len(files), 'file')}, "
        f"{shown_bytes(total)}; {coming} {'to' if missing else 'in'} {folder}"
    )
    folder.mkdir(parents=True, exist_ok=True)
    require_free(folder, missing)


def _fetched(wanted: HubModel) -> Path:

    if wanted.file is not None:
        return Path(hf_hub_download(wanted.repo, wanted.file, revision=wanted.revision))
    return Path(
        snapshot_download(
            wanted.repo,
            revision=wanted.revision,
            allow_patterns=HUB_FILES,
            ignore_patterns=HUB_FILES_IN_ANOTHER_FORM,
        )
    )


@contextmanager
def _hub_errors_as_sentences(wanted: HubModel) -> Iterator[None]:
    try:
        yield
    except (InputError, ServiceError):
        raise
    except Exception as error:
        raise _sentence(wanted, list(_causes(error))) from error


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and what it was raised from, the deepest last."""
    while error is not None:
        yield error
        error = error.__cause__


def _sentence(wanted: HubModel, causes: Sequence[BaseException]) -> Exception:
    """Return what to tell of an error of the hub's client, whose own words go on for lines."""

    hub = constants.ENDPOINT
    told: Sequence[tuple[Any, Exception]] = (
        (
            errors.GatedRepoError,
            InputError(f"{wanted.repo} is gated: accept its terms at {hub}/{wanted.repo}, and set HF_TOKEN to a token"),
        ),
        (
            errors.RepositoryNotFoundError,
            InputError(f"there is no model {wanted.repo} at {hub}, or HF_TOKEN may not read it. Correct one of them."),
        ),
        (errors.RevisionNotFoundError, InputError(f"{wanted.repo} has no revision {wanted.revision}")),
        (errors.RemoteEntryNotFoundError, InputError(f"{wanted.repo} has no file {wanted.file}")),
        (errors.HFValidationError, InputError(f"{wanted.repo!r} is no id of the hub; give {_EXAMPLES}")),
        (errors.OfflineModeIsEnabled, InputError("HF_HUB_OFFLINE is set: unset it to fetch a model")),
    )
    for kind, sentence in told:
        if any(isinstance(cause, kind) for cause in causes):
            return sentence
    deepest = causes[-1]
    if isinstance(deepest, OSError) and not isinstance(deepest, ConnectionError) and deepest.filename is not None:
        return deepest  # of the disk
    reason = " ".join(str(deepest).split())[:200] or type(deepest).__name__
    return ServiceError(f"the hub {hub} cannot be reached, or failed: {reason}. Try again where there is a network.")
