#!/usr/bin/env python3
"""Turn poseidon/spec/caffe.proto into caffe_pb2.py and caffe_pb2.pyi, beside it.

Needs `grpcio-tools==1.73.1` in the running Python (a throwaway environment will do): its protoc is 31.0, whose modules
import under every protobuf runtime from 6.31.0 up to 7.x. A newer protoc would shut the older runtimes out.
"""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path

REQUIRED = "1.73.1"
ROOT = Path(__file__).resolve().parent.parent
PROTO = "poseidon/spec/caffe.proto"


def main() -> int:
    try:
        found = metadata.version("grpcio-tools")
    except metadata.PackageNotFoundError:
        found = "none"
    if found != REQUIRED:
        print(
            f"grpcio-tools: expected {REQUIRED}, found {found}; run: pip install grpcio-tools=={REQUIRED}",
            file=sys.stderr,
        )
        return 1
    from grpc_tools import protoc

    return int(protoc.main(["protoc", f"-I{ROOT}", f"--python_out={ROOT}", f"--pyi_out={ROOT}", str(ROOT / PROTO)]))


if __name__ == "__main__":
    sys.exit(main())
