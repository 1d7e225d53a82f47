# Sourced by test.sh: a real Chromium for the tests of pages in tests/pages. Playwright drives Debian's.

ensure_browser() {  # succeeds if there is one; installs it where that is allowed
    command -v chromium >/dev/null && return
    if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
        echo "There is no Chromium, so tests/pages is left out. Install the package chromium to include it."
        return 1
    fi
    echo "Installing chromium for tests/pages ..."
    apt-get install -qq -y --no-install-recommends chromium >/dev/null ||
        { apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium >/dev/null; }
}
