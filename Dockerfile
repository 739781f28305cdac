# The trainers for NVIDIA GPUs, built from this checkout:
#
#   docker build -t bpipe-trainer .
#   docker run --rm --gpus all --ipc=host --ulimit memlock=-1 -v "$PWD:/work" bpipe-trainer train_llama -c /work/my.yaml
#
# --ipc=host: ranks of one host meet in /dev/shm, of which a container has 64 MB by default. memlock: InfiniBand pins
# memory. With a container for each rank, add --pid=host, or GPUs cannot map each other's memory. The image has never
# been built where it was written, since no base image could be had there; its steps were tried one by one on Debian
# 12 with CUDA 13.0.
FROM nvidia/cuda:13.0.2-cudnn-devel-ubuntu24.04

WORKDIR /src
COPY scripts/install_deps.sh scripts/install_deps.sh
RUN scripts/install_deps.sh --build && rm -rf /var/lib/apt/lists/*

# For any CPU with AVX2, not only the one that builds. The installed scripts look for tokenizers' libraries beside them.
COPY . .
RUN make MARCH=x86-64-v3 PREFIX=/usr/local install && ln -s /src/.deps /usr/local/share/bpipe-trainer/.deps

# Ranks run as root in a container.
ENV OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
WORKDIR /work
CMD ["train_llama", "--help"]
