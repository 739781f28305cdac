#!/usr/bin/env bash
# Installs packages that a Debian or Ubuntu machine lacks for building, testing and the tiny data set; names them first.
# It can be run repeatedly: installed packages stay unchanged, and then it needs neither root nor a network.
#
#   scripts/install_deps.sh          for users
#   scripts/install_deps.sh --build  without the packages that only tests need
#   scripts/install_deps.sh --explore  also the tools of `make explore` and its tests
#   scripts/install_deps.sh --dev    also the tools of `make format`, `make lint`, `make fuzz` and `make valgrind`
set -euo pipefail
cd "$(dirname "$0")/.."

say() { echo "install_deps: $*"; }
fail() {
    echo "install_deps: $*" >&2
    exit 1
}

# One line per package: alternative names, first choice first | features lost without it (empty: all).
wanted() {
    cat <<'END'
gcc |
g++ |
make |
libyaml-dev |
python3 |
libdnnl-dev libonednn-dev | matrix products about 5 % slower
libopenmpi-dev | one rank only, no pipeline
openmpi-bin | one rank only, no pipeline
python3-numpy | no studies/calibrate.py, and the tests that need NumPy are skipped
zstd | .zst inputs of scripts/prepare_data.py are refused
nodejs | no pictures: scripts/plot.py
librsvg2-bin | no .png pictures: scripts/plot.py
bible-kjv | no tiny data set; use scripts/prepare_data.py FILE... --name bible
bible-kjv-text | no tiny data set; use scripts/prepare_data.py FILE... --name bible
END
    if [ "$tests" = 1 ]; then
        cat <<'END'
libcmocka-dev | no unit tests
chromium | the test that opens a report in a browser is skipped
python3-pytest | no Python tests
python3-torch | the tests against PyTorch are skipped
zsh | the tests of completion in zsh are skipped
mandoc | the manual page is not checked by mandoc
man-db | the manual page is not checked by man
slurm-wlm | the tests of Slurm jobs are skipped
munge | the tests of Slurm jobs are skipped
iproute2 | the tests with two hosts are skipped
shellcheck | the completion script is not checked by shellcheck
END
    fi
    if [ "$explore" = 1 ]; then echo 'emscripten | no make explore'; fi
    if [ "$dev" = 1 ]; then
        printf '%s | make format and make lint check less\n' clang-format clang-tidy cppcheck
        printf '%s | no make fuzz\n' clang 'libclang-rt-dev libclang-rt-14-dev libclang-common-14-dev'
        echo 'valgrind | no make valgrind'
    fi
    if ! have_pip; then
        echo "python3-pip | the tests against transformers are skipped${nvcc:+, and no cuDNN attention on GPUs}"
    fi
}

have_pip() { "$python" -m pip --version >/dev/null 2>&1; }
installed() { dpkg-query -W -f='${Status}' "$1" 2>/dev/null | grep -q 'ok installed$'; }
available() { [ -n "$(apt-cache madison "$1" 2>/dev/null)" ]; }

# Sets the array `missing` to the lines of wanted() without an installed alternative.
find_missing() {
    missing=()
    local line name
    while IFS= read -r line; do
        for name in ${line%%|*}; do
            if installed "$name"; then continue 2; fi
        done
        missing+=("$line")
    done < <(wanted)
}

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        fail "this needs root and there is no sudo; run scripts/install_deps.sh as root"
    fi
}

# Sets `names` to the available packages, and reports the others.
choose() {
    names=()
    local line name cost
    for line in "${missing[@]}"; do
        for name in ${line%%|*}; do
            if available "$name"; then
                names+=("$name")
                continue 2
            fi
        done
        cost=${line#*|}
        name=$(echo "${line%%|*}" | xargs | sed 's/ / or /g')
        [ -n "${cost// /}" ] || fail "$name is not in this system's package lists, and nothing works without it"
        say "$name is not in this system's package lists (on Ubuntu: enable universe):$cost"
    done
}

install_packages() {
    find_missing
    if [ ${#missing[@]} = 0 ]; then
        say "every package is installed"
        return
    fi
    as_root apt-get update -q || say "apt-get update failed; going on with the package lists that are here"
    choose
    if [ ${#names[@]} = 0 ]; then return; fi
    say "installing ${names[*]}"
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${names[@]}"
    quiet_services
}

# The tests start their own Slurm daemons, with their own folder and ports, so no daemon needs to run permanently.
quiet_services() {
    [[ " ${names[*]} " == *" slurm-wlm "* && -d /run/systemd/system ]] || return 0
    as_root systemctl --quiet disable --now slurmctld slurmd munge 2>/dev/null || true
}

# Installs Python wheels without their dependencies into a folder of their own under .deps, completely or not at all.
# Arguments: folder, packages that it must contain, name and use, features lost without it, the wheels.
install_wheels() {
    local target=.deps/$1 package missing=
    for package in $2; do
        if [ ! -d "$target/$package" ]; then missing=1; fi
    done
    if [ -z "$missing" ]; then
        say "there already: ${3%% (*}"
        return
    fi
    say "getting $3, into $target"
    rm -rf "$target.new"
    # A variable: before 22.1, as on Ubuntu 22.04, pip has no such option.
    if PIP_ROOT_USER_ACTION=ignore "$python" -m pip install -q --no-deps --disable-pip-version-check \
        --target "$target.new" "${@:5}"; then
        rm -rf "$target"
        mv "$target.new" "$target"
    else
        rm -rf "$target.new"
        say "warning: $target could not be filled; $4"
    fi
}

# Hugging Face's own reader of the checkpoints, for the tests: the first version with all our models. The system's
# PyTorch may be too old for it, so old_torch.py adds the missing names. Its other dependencies, except PyTorch and
# NumPy, are installed next to it and do not affect the system's.
install_transformers() {
    local target=.deps/transformers version=4.54.1 there=transformers-4.54.1.dist-info
    cmp -s test/support/old_torch.py $target/old_torch.py || there='another old_torch.py'
    install_wheels transformers "$there" 'transformers (Python wheels, 115 MB) for the tests' \
        'the tests against it are skipped' \
        transformers==$version 'tokenizers>=0.21,<0.22' 'safetensors>=0.4.5' 'huggingface-hub>=0.30,<1' regex filelock \
        packaging pyyaml tqdm requests urllib3 certifi idna charset-normalizer fsspec typing-extensions
    if [ ! -d $target ] || [ -f $target/old_torch.py ]; then return 0; fi
    sed -i '1i import old_torch' $target/transformers/__init__.py
    cp test/support/old_torch.py $target/
}

# cuobjdump and nvdisasm, which a toolkit may lack. studies/machine_code.py and its tests read the kernels' machine code
# with them. A newer version also reads the output of an older toolkit.
install_cuda_tools() {
    local PATH=$PATH:${nvcc%/*}
    if { command -v cuobjdump && command -v nvdisasm; } >/dev/null; then return; fi
    install_wheels cuda_tools nvidia \
        "cuobjdump and nvdisasm (Python wheels, 6 MB) for the tests of the kernels' machine code" \
        "the tests of the kernels' machine code are skipped" nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm
}

# The C sources of libyaml, which make explore compiles to WebAssembly. Debian only has the compiled library; the source
# package of a Python wheel contains the sources.
install_libyaml() {
    local target=.deps/libyaml
    if [ -f $target/yaml.h ]; then
        say "the sources of libyaml are there"
        return
    fi
    say "getting the sources of libyaml (in a Python source package) into $target, for make explore"
    rm -rf $target $target.new
    if "$python" -m pip download -q --no-deps --no-binary :all: -d $target.new 'ruamel.yaml.clib==0.2.15' &&
        tar -xf $target.new/*.tar.gz -C $target.new --strip-components=1 && [ -f $target.new/yaml.h ]; then
        mv $target.new $target
    else
        rm -rf $target.new
        say "warning: the sources of libyaml could not be fetched; no make explore"
    fi
}

dev=0
tests=1
explore=0
case "${1:-}" in
'') ;;
--build) tests=0 ;;
--explore) explore=1 ;;
--dev) dev=1 ;;
*) fail "unknown argument $1; there are --build, --explore and --dev" ;;
esac

# The system's packages belong to the system's Python.
python=$(command -v /usr/bin/python3 || command -v python3 || echo python3)
nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null || true)
if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
    fail "no apt-get here; install these by other means: a C and a C++ compiler with OpenMP, make, libyaml, oneDNN," \
        "Open MPI, cmocka, and for Python 3: pytest, NumPy, PyTorch; for pictures node and rsvg-convert"
fi
install_packages
if [ -n "$nvcc" ]; then
    # The frontend consists of C++ headers, packed as a Python wheel. From 1.19 on it needs libcuda at link time, and
    # the program would not start on a machine without a driver.
    install_wheels cudnn-frontend include 'the cuDNN frontend headers (nvidia-cudnn-frontend, a Python wheel)' \
        'attention on GPUs does without cuDNN' 'nvidia-cudnn-frontend>=1.5,<1.19'
fi
# Optional libraries of scripts/prepare_data.py, which also looks for them here. pyarrow from 21 on needs a newer NumPy,
# and Python 3.14 a newer pyarrow.
install_wheels prepare_data 'pyarrow tokenizers sentencepiece' \
    'sentencepiece, tokenizers and pyarrow (Python wheels, 46 MB) for scripts/prepare_data.py and sample.prompt' \
    'scripts/prepare_data.py takes text and JSON lines as bytes, and its other tests are skipped' \
    'sentencepiece>=0.2' 'tokenizers>=0.20' 'pyarrow>=18,<21;python_version<"3.14"' 'pyarrow>=22;python_version>="3.14"'
if [ "$tests" = 1 ]; then
    install_transformers
    # TensorBoard's own reader of event files, for the tests of scripts/metrics.py, which writes them without it.
    install_wheels tensorboard tensorboard 'tensorboard (Python wheels, 6 MB) for the tests' \
        'the tests that read event files back are skipped' \
        tensorboard==2.16.2 protobuf==4.25.8 absl-py==2.1.0 six packaging
    if [ -n "$nvcc" ]; then install_cuda_tools; fi
fi
if [ "$explore" = 1 ]; then
    install_libyaml
    # axe, which checks pages for accessibility, for the tests of the page.
    install_wheels axe axe_core_python 'axe (a Python wheel) for the tests' \
        "the test of the page's accessibility is skipped" axe-core-python==0.1.0
fi
