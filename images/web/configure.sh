#!/usr/bin/env bash
# Settings of skilld/web. Called by install.sh when all packages are installed.
set -euo pipefail

# Without user namespaces the browser can't make its sandbox: the container is the sandbox. /dev/shm may be small.
browser=/usr/local/bin/chromium
cat >"$browser" <<'SH'
#!/bin/sh
exec /usr/lib/chromium/chromium-headless-shell --no-sandbox --disable-dev-shm-usage "$@"
SH
chmod 755 "$browser"
ln -s chromium /usr/local/bin/google-chrome

# The playwright of PyPI brings a Node.js of 120 MB; PLAYWRIGHT_NODEJS_PATH names that of Debian.
rm "$(python3 -c 'import playwright, pathlib; print(pathlib.Path(playwright.__file__).with_name("driver") / "node")')"

# Each version of playwright looks for its own revision of the browser. All of them find that of Debian: from revision
# 1000 of version 1.22 to 300 after that of the locked version, which are two years more.
folder=/usr/local/share/playwright
for path in chrome-linux/chrome chrome-linux/headless_shell chrome-linux64/chrome \
    chrome-headless-shell-linux64/chrome-headless-shell; do
    mkdir -p "$folder/browser/${path%/*}"
    ln -s "$browser" "$folder/browser/$path"
done
locked=$(jq -r '.browsers[] | select(.name == "chromium") | .revision' \
    /usr/local/lib/node_modules/playwright/node_modules/playwright-core/browsers.json)
for ((revision = 1000; revision <= locked + 300; revision++)); do
    ln -s browser "$folder/chromium-$revision"
    ln -s browser "$folder/chromium_headless_shell-$revision"
done
