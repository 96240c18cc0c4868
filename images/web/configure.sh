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

# The playwright of PyPI brings a Node.js of its own; PLAYWRIGHT_NODEJS_PATH names that of Debian.
driver=$(python3 -c 'import pathlib, playwright; print(pathlib.Path(playwright.__file__).with_name("driver"))')
rm "$driver/node"

# Documents of skills say `playwright install`, which would try to lock the folder of the browsers, or run apt-get.
for core in "$driver/package" /usr/local/lib/node_modules/playwright/node_modules/playwright-core; do
    for start in 'async install(executablesToInstall, options) {' 'async installDeps(executablesToInstallDeps, dryRun) {'; do
        [ "$(grep -cF "$start" "$core/lib/coreBundle.js")" = 1 ] ||
            { echo "$core no longer installs browsers as expected: adapt configure.sh" >&2 && exit 1; }
        note='console.log("The image has the browser Chromium, and nothing is downloaded.")'
        sed -i "s|$start|& return $note;|" "$core/lib/coreBundle.js"
    done
done

# Each version of playwright looks for its own revision of the browser. All of them find that of Debian: from revision
# 1000 to 300 after that of the locked version. A new lock moves the end.
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
