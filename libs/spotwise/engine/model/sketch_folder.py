"""A model folder without its large tensors, for a process that has no folder: it gets the rest from others, panel by panel.

The files are as long as the originals, and have their headers and small tensors in the same places; what is between is a hole.
A file beside them holds the digest of the whole model, which cannot be computed from what is here.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from spotwise.core.weights.inventory import FilePiece, ModelSketch, SketchFile
from spotwise.engine.model.checkpoint import CONFIG_FILE, TOKENIZER_FILE, Checkpoint, StoredTensor, index_file
from spotwise.engine.model.errors import ModelError

_DIGEST_FILE = "spotwise-sketch.json"
#: Tensors up to this size are there, and all with less than two dimensions.
_SMALL_BYTES = 1 << 16


def is_small(tensor: StoredTensor) -> bool:
    """Whether a sketch has a tensor."""
    return len(tensor.shape) < 2 or tensor.end - tensor.start <= _SMALL_BYTES


def sketch_of(folder: Path, checkpoint: Checkpoint, name: str, digest: str) -> ModelSketch:
    """Return what another process needs of a folder; raises `ModelError` where it cannot be read."""
    try:
        texts = [file for file in (folder / CONFIG_FILE, folder / TOKENIZER_FILE) if file.is_file()]
        small = [_whole(file) for file in (*texts, *index_file(folder, checkpoint.config))]
        return ModelSketch(name, digest, (*small, *_weight_files(checkpoint)))
    except OSError as error:
        raise ModelError(f"{folder} cannot be read: {error}") from error


def write_sketch(sketch: ModelSketch, folder: Path) -> None:
    """Make a new folder of a sketch; raises `ModelError` where that fails, or a file's name is none."""
    try:
        folder.mkdir(parents=True)
        for file in sketch.files:
            if Path(file.name).name != file.name or file.name in ("", ".", ".."):
                raise ModelError(f"the sketch of {sketch.name} has a file of the name {file.name!r}")
            with (folder / file.name).open("wb") as stream:
                for piece in file.pieces:
                    stream.seek(piece.offset)
                    stream.write(piece.data)
                stream.truncate(file.byte_count)
        (folder / _DIGEST_FILE).write_text(json.dumps({"digest": sketch.digest}))
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise ModelError(f"the sketch of {sketch.name} cannot be written to {folder}: {error}") from error


def sketch_digest(folder: Path) -> str | None:
    """Return the model's digest where the folder is a sketch; `None`: it is a whole one."""
    file = folder / _DIGEST_FILE
    if not file.is_file():
        return None
    digest: str = json.loads(file.read_text())["digest"]
    return digest


def _whole(file: Path) -> SketchFile:
    data = file.read_bytes()
    return SketchFile(file.name, len(data), (FilePiece(0, data),))


def _weight_files(checkpoint: Checkpoint) -> Iterator[SketchFile]:
    for file, tensors in groupby(sorted(checkpoint.tensors, key=lambda each: each.file), key=lambda each: each.file):
        own = list(tensors)
        with file.open("rb") as stream:
            header = stream.read(min(tensor.start for tensor in own))
            pieces = [FilePiece(0, header)]
            for tensor in sorted(filter(is_small, own), key=lambda each: each.start):
                stream.seek(tensor.start)
                pieces.append(FilePiece(tensor.start, stream.read(tensor.end - tensor.start)))
        yield SketchFile(file.name, file.stat().st_size, tuple(pieces))
