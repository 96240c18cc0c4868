#!/usr/bin/env bash
# Settings of skilld/office. Called by install.sh when all packages are installed.
set -euo pipefail

# A policy for servers keeps ImageMagick from PDF and PostScript files of strangers. Here the container is the sandbox.
policy=/etc/ImageMagick-7/policy.xml
sed -i -E '/<policy domain="coder" rights="none" pattern="[^"]*(PS|PDF)/d' "$policy"

# magika is a part of markitdown; its command line is a program of 34 MB beside it.
rm -f /usr/local/bin/magika

# imageio-ffmpeg brings an ffmpeg of 170 MB, and takes that of Debian where it is missing.
python3 - <<'PYTHON'
import importlib.util
import pathlib

binaries = pathlib.Path(importlib.util.find_spec("imageio_ffmpeg").submodule_search_locations[0], "binaries")
for program in binaries.glob("ffmpeg-*"):
    program.unlink()
PYTHON

# Two instances of LibreOffice with one profile get in each other's way, and one of them ends without a word. So each
# takes the first profile that no other one uses: a single instance has the usual one, with the settings and macros that
# scripts put there. LibreOffice also takes the home directory from /etc/passwd; this works where only HOME is set.
cat >/usr/local/bin/soffice <<'EOF'
#!/bin/sh
program=/usr/bin/${0##*/}
[ -x "$program" ] || program=/usr/bin/soffice
for argument; do
    case $argument in -env:UserInstallation=*) exec "$program" "$@" ;; esac
done
folder=${HOME:-/tmp}/.config/libreoffice
mkdir -p "$folder" 2>/dev/null && [ -w "$folder" ] || folder=$(mktemp -d)
number=1 profile=4
# The descriptor stays open in the program, and with it the lock.
while exec 9>"$folder/$profile.lock" && ! flock -n 9 && [ "$number" -lt 64 ]; do
    number=$((number + 1)) profile=4-$number
done
url=file://$(printf %s "$folder/$profile" | sed 's/%/%25/g; s/ /%20/g')
exec "$program" "-env:UserInstallation=$url" "$@"
EOF
chmod 755 /usr/local/bin/soffice
for program in libreoffice loffice localc lodraw loimpress lomath lowriter; do
    if [ -e "/usr/bin/$program" ]; then ln -s soffice "/usr/local/bin/$program"; fi
done

# tesseract reads the languages of one folder. With the operator's (pools.NAME.fonts) this makes one of links to both.
cat >/usr/local/bin/tesseract <<'EOF'
#!/bin/sh
own=/usr/share/tesseract-ocr/5/tessdata added=/opt/skilld/fonts/tessdata both=/tmp/.tessdata
if [ -z "${TESSDATA_PREFIX-}" ] && [ -d "$added" ]; then
    if [ ! -d "$both" ] && new=$(mktemp -d /tmp/.tessdata.XXXXXX); then
        ln -s "$own"/* "$new" && ln -sf "$added"/*.traineddata "$new" && mv -T "$new" "$both" 2>/dev/null ||
            rm -rf "$new"
    fi
    if [ -d "$both" ]; then export TESSDATA_PREFIX=$both; fi
fi
exec /usr/bin/tesseract "$@"
EOF
chmod 755 /usr/local/bin/tesseract

# Fonts that Debian does not have, from npm: Gelasio has the metrics of Georgia, Anton is close to Impact.
fonts=/usr/local/lib/node_modules/@expo-google-fonts
mkdir -p /usr/local/share/fonts
find "$fonts" -name '*.ttf' -exec mv --target-directory /usr/local/share/fonts {} +
find "$fonts" -name '*.png' -delete

# Documents name fonts of Windows; without this, fontconfig would take DejaVu for these. The first ones get the name as a
# further one, since Chromium takes no font of another name.
{
    printf '%s\n' '<?xml version="1.0"?>' '<!DOCTYPE fontconfig SYSTEM "urn:fontconfig:fonts.dtd">' '<fontconfig>'
    while IFS=: read -r name font; do
        echo "<match target=\"scan\"><test name=\"family\"><string>$font</string></test>"
        echo "<edit name=\"family\" mode=\"append\"><string>$name</string></edit></match>"
    done <<'EOF'
Georgia:Gelasio
Garamond:EB Garamond
Consolas:Inconsolata
Impact:Anton
EOF
    while IFS=: read -r names font; do
        IFS=, read -ra names <<<"$names"
        for name in "${names[@]}"; do
            echo "<alias binding=\"same\"><family>$name</family><accept><family>$font</family></accept></alias>"
        done
    done <<'EOF'
SimSun,NSimSun,SimHei,Microsoft YaHei,DengXian,KaiTi,FangSong:Noto Sans CJK SC
PMingLiU,MingLiU,Microsoft JhengHei:Noto Sans CJK TC
MS Gothic,MS PGothic,MS Mincho,MS PMincho,Meiryo,Yu Gothic,Yu Mincho:Noto Sans CJK JP
Malgun Gothic,Batang,Dotum,Gulim:Noto Sans CJK KR
Mangal,Nirmala UI:Lohit Devanagari
Angsana New,Browallia New,Cordia New,Leelawadee UI:Loma
EOF
    echo '</fontconfig>'
} >/etc/fonts/local.conf

# matplotlib has no setting for a font cache that its user can't write, and takes seconds to make one in a new home.
# This lets it start from the image's cache.
shared=/usr/share/skilld/matplotlib
python3 - "$shared" <<'PYTHON'
import importlib.util
import pathlib
import sys

shared = sys.argv[1]
source = pathlib.Path(importlib.util.find_spec("matplotlib").submodule_search_locations[0], "font_manager.py")
text = source.read_text()
old = """    if try_read_cache:
        try:
            fm = json_load(fm_path)
"""
new = f"""    if try_read_cache:
        try:
            shared = Path("{shared}", fm_path.name)
            fm = json_load(fm_path if fm_path.exists() else shared)
"""
if text.count(old) != 1:
    sys.exit(f"{source} no longer reads its font cache as expected: adapt configure.sh")
source.write_text(text.replace(old, new))
PYTHON
MPLCONFIGDIR=$shared python3 -c 'import matplotlib.font_manager'
