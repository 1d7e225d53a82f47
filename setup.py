"""What pyproject.toml cannot say: the part in C (poseidon/transport/native), left out where it cannot be built."""

from glob import glob

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "poseidon.transport.native._mesh",
            sources=sorted(glob("poseidon/transport/native/*.c")),
            depends=sorted(glob("poseidon/transport/native/*.h")),
            # Hidden: libc has functions of its own that are called `advance` and `link`.
            extra_compile_args=["-std=gnu11", "-O2", "-Wall", "-Wextra", "-pthread", "-fvisibility=hidden"],
            extra_link_args=["-pthread"],
            libraries=["m"],
            optional=True,
        )
    ]
)
