"""Write a GGUF file with its matrices in another type: `python -m lab.requantize FILE TYPE OUT`; needs gguf."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path
from typing import Any


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(prog="python -m lab.requantize", description=__doc__)
    parser.add_argument("model", type=Path, help="a GGUF file")
    parser.add_argument("kind", help="a type that the package gguf writes: Q8_0, Q5_1, Q5_0, Q4_1, Q4_0")
    parser.add_argument("out", type=Path, help="the new file")
    arguments = parser.parse_args()
    requantize(arguments.model, arguments.kind, arguments.out)


def requantize(model: Path, kind: str, out: Path) -> None:
    """Copy a file with all matrices as `kind`."""
    gguf: Any = importlib.import_module("gguf")
    reader, number = gguf.GGUFReader(model), gguf.GGMLQuantizationType[kind]
    writer = gguf.GGUFWriter(out, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if name != "general.architecture" and not name.startswith("GGUF."):
            sub_type = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), field.types[0], sub_type=sub_type)
    for tensor in reader.tensors:
        values, as_type = tensor.data, tensor.tensor_type
        if len(tensor.shape) == 2:
            values, as_type = gguf.quantize(gguf.dequantize(values, as_type), number), number
        writer.add_tensor(tensor.name, values, raw_dtype=as_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
