# Sourced by test.sh: what the tests with lab hosts need besides Python: network namespaces and a real sshd.

ensure_lab() {  # succeeds if labs can be built; installs what is missing where that is allowed
    if [ "$(id -u)" -ne 0 ]; then
        echo "Not root: lab hosts need network namespaces, so tests/faults is left out. Run as root to include it."
        return 1
    fi
    local missing=()
    command -v ip >/dev/null || missing+=(iproute2)
    command -v ssh >/dev/null || missing+=(openssh-client)
    PATH=$PATH:/usr/sbin command -v sshd >/dev/null || missing+=(openssh-server)
    if [ ${#missing[@]} -gt 0 ]; then
        echo "Installing ${missing[*]} for the lab hosts of tests/faults ..."
        apt-get install -qq -y --no-install-recommends "${missing[@]}" >/dev/null ||
            { apt-get update -qq && apt-get install -qq -y --no-install-recommends "${missing[@]}" >/dev/null; }
    fi
    if ! ip netns add "probe$$" 2>/dev/null; then
        echo "Network namespaces are not allowed here (a container without CAP_SYS_ADMIN?), so tests/faults is left out."
        return 1
    fi
    ip netns del "probe$$"
}
