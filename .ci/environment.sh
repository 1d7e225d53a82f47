# Sourced by quickstart.sh and test.sh: makes or reuses .venv and installs the project there under the constraints.
# An install is repeated only when pyproject.toml or constraints.txt have changed since.

ensure_environment() {  # $1: extras, e.g. "dev,leveldb"; "" for none
    local python=${PYTHON:-python3} stamp
    if [ ! -x .venv/bin/python ]; then
        echo "Making .venv with $($python --version) ..."
        "$python" -m venv .venv
    fi
    stamp=.venv/installed-$(cat pyproject.toml constraints.txt | cksum | cut -d' ' -f1)-${1//,/-}
    if [ ! -e "$stamp" ]; then
        echo "Installing Poseidon and what it needs into .venv (a few minutes the first time) ..."
        .venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".${1:+[$1]}"
        touch "$stamp"
    fi
}
