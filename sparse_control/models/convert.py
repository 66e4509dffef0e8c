"""GGUF files as safetensors in the cache: made once per file and library versions, and checked at every use."""

import os
import shutil
import tempfile
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

from sparse_control.errors import InputError
from sparse_control.files import read_json, write_json
from sparse_control.models.gguf_file import read_header
from sparse_control.models.identity import ModelIdentity, file_sha256
from sparse_control.models.locate import Location
from sparse_control.models.weights import check_tensors, read_model
from sparse_control.project import cache_folder

NOTE = "source.json"


def converted(location: Location, identity: ModelIdentity) -> Path:
    """The folder with the safetensors form of a GGUF file.

    A copy of another source, of other library versions, or with a file that is not as it was written is made again.

    Raises:
        InputError: the file cannot be read as a language model, a tensor is missing or left over (nothing is kept), or
            the cache cannot be written.
    """
    source = identity.weights_sha256
    folder = cache_folder() / "models" / f"{source[:16]}-transformers-{identity.versions['transformers']}"
    made_of = {"sha256": source, "versions": dict(identity.versions)}
    if _stands(folder, made_of):
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".convert."))
        try:
            _convert(location, temporary)
            files = {path.name: file_sha256(path) for path in sorted(temporary.iterdir())}
            write_json(temporary / NOTE, {"file": location.files[0], **made_of, "files": files})
            if not _stands(folder, made_of):  # another process may have been faster
                shutil.rmtree(folder, ignore_errors=True)
                os.replace(temporary, folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        raise InputError(
            f"{folder}: cannot be written ({error.strerror}); free disk space or set SPARSE_CONTROL_CACHE"
        ) from error
    return folder


def _stands(folder: Path, made_of: dict[str, Any]) -> bool:
    """Whether the folder holds a whole copy of that source."""
    try:
        note = read_json(folder / NOTE) if (folder / NOTE).is_file() else None
        if not isinstance(note, dict) or not isinstance(note.get("files"), dict) or not made_of.items() <= note.items():
            return False
        there = {path.name for path in folder.iterdir()} - {NOTE}
        return there == set(note["files"]) and all(file_sha256(folder / name) == note["files"][name] for name in there)
    except InputError:
        return False


def _convert(location: Location, folder: Path) -> None:
    parts = [location.folder / name for name in location.files]
    count = read_header(parts[0]).fields.get("split.count", 1)
    if count not in (1, len(parts)):
        raise InputError(f"{parts[0]}: is a part of {count} of a split GGUF file; give it under its own name")
    gguf = parts[0] if count == 1 else _joined(parts, folder / "joined.gguf")
    model, tokenizer = read_model(gguf.parent, "float32", gguf.name)
    _check_all_read(gguf, model)
    (folder / "joined.gguf").unlink(missing_ok=True)
    # The tensors are plain floats by now; the quantizer left on the model only forbids saving them.
    model.hf_quantizer = None
    del model.config.quantization_config
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _joined(parts: Sequence[Path], out: Path) -> Path:
    """One GGUF file from the parts of a split one: the metadata of the first and the tensors of all."""
    from gguf import GGUFReader, GGUFValueType, GGUFWriter

    readers = [GGUFReader(part) for part in parts]
    fields = readers[0].fields
    writer = GGUFWriter(out, arch=fields["general.architecture"].contents())
    for name, field in fields.items():
        if name.startswith(("GGUF.", "split.")) or name == "general.architecture":
            continue
        inner = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), field.types[0], sub_type=inner)
    tensors = [tensor for reader in readers for tensor in reader.tensors]
    for tensor in tensors:
        data = tensor.data
        writer.add_tensor_info(tensor.name, data.shape, data.dtype, data.nbytes, tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor in tensors:
        writer.write_tensor_data(tensor.data)
    writer.close()
    return out


def _check_all_read(gguf: Path, model: Any) -> None:
    """Refuse a GGUF file of which the reader passed over a tensor, which it does in silence.

    Raises:
        InputError: names the tensors.
    """
    header = read_header(gguf)
    stored = sum(prod(tensor.shape) for tensor in header.tensors.values())
    if stored == sum(parameter.numel() for parameter in {*model.parameters()}):
        return
    from transformers.modeling_gguf_pytorch_utils import TENSOR_PROCESSORS, TensorProcessor, get_gguf_hf_weights_map

    processor = TENSOR_PROCESSORS.get(header.fields["general.architecture"], TensorProcessor)
    read = get_gguf_hf_weights_map(model, processor(config=model.config.to_dict()))
    left = [name for name in header.tensors if name not in read]
    check_tensors(gguf, {"missing_keys": (), "mismatched_keys": (), "unexpected_keys": left or ["some of its numbers"]})
