# Poseidon in a container. The base decides what computes:
#     docker build -t poseidon:cpu .
#     docker build -t poseidon:cuda --build-arg BASE=nvidia/cuda:12.8.1-runtime-ubuntu24.04 .
# PIP_OPTIONS go to pip: --extra-index-url with the place of another build of torch, say.
#     docker run --rm -v "$PWD":/data poseidon:cpu train --solver=solver.prototxt
ARG BASE=debian:bookworm-slim
FROM ${BASE}
ARG PIP_OPTIONS=
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3 python3-venv python3-dev gcc libc6-dev openssh-client iproute2 \
    && rm -rf /var/lib/apt/lists/*
COPY pyproject.toml setup.py constraints.txt README.md LICENSE /opt/poseidon/
COPY poseidon /opt/poseidon/poseidon
COPY caffe /opt/poseidon/caffe
RUN python3 -m venv /opt/venv \
    && /opt/venv/bin/pip install --no-cache-dir --disable-pip-version-check \
        ${PIP_OPTIONS} -c /opt/poseidon/constraints.txt /opt/poseidon
ENV PATH=/opt/venv/bin:$PATH
WORKDIR /data
ENTRYPOINT ["poseidon"]
CMD ["--help"]
