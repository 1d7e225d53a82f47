# Sourced by quickstart.sh and test.sh: makes or reuses .venv and installs the project there under the constraints.
# An install is repeated only when what it is made of has changed since: dependencies, and the part in C.

cannot_install() {  # $1: why
    echo "$(basename "$0"): $1" >&2
    exit 1
}

check_python() {  # $1: an interpreter, which is to make .venv
    command -v "$1" >/dev/null ||
        cannot_install "there is no program '$1'; install Python 3.10 or newer, or name one: PYTHON=/path/to/python3 $0"
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
        cannot_install "expected Python 3.10 or newer, got $("$1" --version 2>&1); name another one: PYTHON=/path/to/python3 $0"
    "$1" -c 'import ensurepip, venv' 2>/dev/null ||
        cannot_install "$1 has no module venv; install it (Debian and Ubuntu: apt install python3-venv)"
}

ensure_environment() {  # $1: extras, e.g. "dev,leveldb"; "" for none
    local python=${PYTHON:-python3} stamp
    if [ ! -x .venv/bin/python ]; then
        check_python "$python"
        echo "Making .venv with $("$python" --version) ..."
        "$python" -m venv .venv
    fi
    stamp=.venv/installed-$(cat pyproject.toml constraints.txt setup.py poseidon/transport/native/*.[ch] | cksum | cut -d' ' -f1)-${1//,/-}
    if [ ! -e "$stamp" ]; then
        echo "Installing Poseidon and what it needs into .venv (a few minutes the first time) ..."
        local manner=--quiet # but for people, who see what is fetched, and how far it is
        if [ -t 1 ]; then manner=--progress-bar=on; fi
        .venv/bin/python -m pip install "$manner" --disable-pip-version-check -c constraints.txt -e ".${1:+[$1]}"
        touch "$stamp"
    fi
}
