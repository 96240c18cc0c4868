#!/usr/bin/env bash
# Checks the content of an image from inside a container, which tests/images.sh starts. Prints a line for each claim and
# exits with 1 if one is false.
#
# Usage: image-checks.sh base|office|web
set -uo pipefail
content=$1

# The home directory of a command in a workspace.
mkdir -p "$HOME" && cd "$HOME" || exit 1
missing=()

# Runs the code of a claim. Prints the end of its output if it fails.
claim() { # text, code
    local start=${EPOCHREALTIME/./} mark=ok
    timeout 300 bash -euo pipefail -c "$2" >/tmp/claim.log 2>&1 </dev/null || mark=MISSING
    printf '  %-8s%6.1f s  %s\n' "$mark" "$(((${EPOCHREALTIME/./} - start) / 100000))e-1" "$1"
    if [ "$mark" != ok ]; then
        tail -n 15 /tmp/claim.log | sed 's/^/             /'
        missing+=("$1")
    fi
}

# Succeeds if a command ends with an error of its own, long before a deadline. `! timeout 60 …` would accept a hang as well.
fails_at_once() {
    local status=0
    timeout 60 "$@" || status=$?
    ((status != 0 && status < 124))
}
export -f fails_at_once

check_base() {
    claim 'the packages have the versions of the locks' 'python3 - <<PYTHON
import importlib.metadata, json, pathlib, re, subprocess, sys
debian, wrong = {}, []
installed = dict(line.split() for line in subprocess.check_output(
    ["dpkg-query", "-W", "-f", r"\${Package} \${Version}\n"], text=True).splitlines())
shared = pathlib.Path("/usr/share/skilld")
for folder in [shared, *(lock.parent for lock in shared.glob("*/packages.lock"))]:
    newer = folder / "superseded"
    allowed = {line.split()[0] for line in newer.read_text().splitlines()} if newer.exists() else set()
    lines = [line.split("=", 1) for line in (folder / "packages.lock").read_text().splitlines() if line[0] != "#"]
    debian.update((name, version) for name, version in lines if name not in allowed)
    for name, version in re.findall(r"^([\w.-]+)==([^ ]+)", (folder / "requirements.lock").read_text(), re.M):
        if importlib.metadata.version(name) != version:
            wrong.append(name)
    lock = folder / "package-lock.json"
    for path, item in json.loads(lock.read_text())["packages"].items() if lock.exists() else ():
        manifest = pathlib.Path("/usr/local/lib", path, "package.json")
        if path and (manifest.exists() or not item.get("optional")):
            if json.loads(manifest.read_text())["version"] != item["version"]:
                wrong.append(path)
wrong += [name for name, version in debian.items() if installed.get(name) != version]
sys.exit(f"other versions: {wrong}" if wrong else 0)
PYTHON'
    claim 'nothing of the build is left but its lists' '
        for path in /usr/share/skilld/{,*/}{ca.crt,apt.conf} /var/cache/skilld /run/skilld-build; do
            [ ! -e "$path" ] || { echo "$path"; exit 1; }
        done
        [ -z "$(ls -A /var/lib/apt/lists)" ]'
    claim 'the programs of the base image exist' '
        for program in awk bash cat curl file find git grep jq node pip pip3 pytest python python3 rg sed sqlite3 tar unzip uv zip; do
            command -v "$program" || { echo "no $program"; exit 1; }
        done'
    claim 'the mount points and the certificates exist' \
        '[ -d /workspace ] && [ -d /run/skilld ] && [ -s /etc/ssl/certs/ca-certificates.crt ]'
    claim 'the locale is UTF-8' '[ "$(printf %s é | wc -m)" = 1 ]'
    claim 'every program of the search path has its libraries' '
        for program in /usr/bin/* /usr/sbin/* /usr/local/bin/*; do
            libraries=$(ldd "$(readlink -f "$program")" 2>/dev/null) || libraries=
            if [[ $libraries == *"not found"* ]]; then echo "$program: $libraries"; exit 1; fi
        done'
    claim 'python3 has yaml, requests, sqlite3 and ssl' \
        'python3 -c "import requests, sqlite3, ssl, yaml; assert yaml.safe_load(\"a: 1\") == {\"a\": 1}"'
    claim 'every Python module is compiled, from the file that is there' '
        python3 - <<PYTHON
import importlib.util, pathlib, sys
def is_compiled(path):
    cached, source = pathlib.Path(importlib.util.cache_from_source(path)), path.stat()
    numbers = cached.read_bytes()[8:16] if cached.exists() else b""
    return numbers == int(source.st_mtime).to_bytes(4, "little") + source.st_size.to_bytes(4, "little")
folders = map(pathlib.Path, ["/usr/lib/python3/dist-packages", "/usr/local/lib/python3.13/dist-packages"])
left = [str(path) for folder in folders for path in folder.rglob("*.py")
        if "/tests/" not in str(path) and not is_compiled(path)]
sys.exit("\n".join([f"{len(left)} are not", *left[:10]]) if left else 0)
PYTHON'
    claim 'node, jq and sqlite3 calculate' \
        '[ "$(node -p 1+1)" = 2 ] && [ "$(jq -n 1+1)" = 2 ] && [ "$(sqlite3 :memory: "select 1+1")" = 2 ]'
    claim 'node lists the loopback interface' '
        [ "$(node -p "Object.keys(os.networkInterfaces()).join()")" = lo ]'
    claim 'require and import find a package of Debian' '
        echo "import { parse } from \"acorn\"; console.log(typeof parse)" >import.mjs
        [ "$(node import.mjs)" = function ] && [ "$(node -p "typeof require(\"acorn\").parse")" = function ]'
    claim 'programs with many words like import start, and those in a pipe' '
        node -e "fs.writeFileSync(\"long.js\", \"//\" + (\"!important \" + \"x\".repeat(190)).repeat(30000) + \"\n\".repeat(60000) +
            \"/*\" + \"import /\".repeat(60000) + \";import x\".repeat(60000) + \"*/console.log(1)\")"
        [ "$(timeout 60 node long.js)" = 1 ]
        mkfifo pipe && { echo "console.log(2)" >pipe & } && [ "$(timeout 60 node pipe)" = 2 ]'
    claim 'git commits' 'git init -q -b main repository && cd repository &&
        git -c user.name=a -c user.email=a@example.org commit -q --allow-empty -m a'
    claim 'rg finds' 'echo needle >hay && [ "$(rg -l needle .)" = ./hay ]'
    claim 'pip says at once that there is no network' 'fails_at_once pip install no-such-package'
    claim 'pip installs a wheel for the user' '
        python3 - <<PYTHON
import zipfile
with zipfile.ZipFile("hello_wheel-1.0-py3-none-any.whl", "w") as wheel:
    wheel.writestr("hello_wheel.py", "GREETING = 1\n")
    wheel.writestr("hello_wheel-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: hello-wheel\nVersion: 1.0\n")
    wheel.writestr("hello_wheel-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    wheel.writestr("hello_wheel-1.0.dist-info/RECORD", "")
PYTHON
        pip install ./hello_wheel-1.0-py3-none-any.whl && python3 -c "import hello_wheel"'
    claim 'a virtual environment has pip' 'python3 -m venv v && v/bin/pip --version'
    claim 'pytest runs a test' 'mkdir tests && echo "def test_one(): assert 1 + 1 == 2" >tests/test_one.py && pytest -q tests'
    claim 'uv starts' 'uv --version'
    claim 'uv runs the system'\''s Python' '[ "$(uv run --no-project python -c "import sys; print(sys.prefix)")" = /usr ]'
    claim 'uv runs a script with inline metadata' '
        printf "# /// script\n# dependencies = []\n# ///\nprint(1)\n" >script.py && [ "$(uv run script.py)" = 1 ]'
    claim 'uv makes a virtual environment and installs a wheel' '
        uv venv -q u && VIRTUAL_ENV=$PWD/u uv pip install -q ./hello_wheel-1.0-py3-none-any.whl && u/bin/python -c "import hello_wheel"'
    claim 'pip and uv find the packages of the image for a virtual environment that does not see them' '
        export PIP_NO_INDEX=1 PIP_FIND_LINKS=/usr/share/skilld/wheels UV_FIND_LINKS=/usr/share/skilld/wheels
        python3 -m venv w
        w/bin/python -c "import requests" && exit 1
        w/bin/pip install -q requests
        w/bin/python -c "import requests"
        uv venv -q x && VIRTUAL_ENV=$PWD/x uv pip install -q requests && x/bin/python -c "import requests"'
    claim 'an environment of uv has the packages of the image in a command' '
        export WORKSPACE_DIR=/workspace
        uv -q venv y && y/bin/python -c "import requests"
        uv venv -q --system-site-packages z && z/bin/python -c "import requests"'
    claim 'uv says at once that there is no network' 'fails_at_once uv run --with no-such-package python -c 1'
}

check_office() {
    local module
    for module in anthropic bs4 defusedxml docx dotenv duckdb httpx imageio jinja2 lxml.etree magic markitdown matplotlib mcp \
        networkx numpy openpyxl pandas pdf2image pdfplumber PIL pptx psutil pydantic pydicom pymupdf pypdf pypdfium2 \
        pytesseract reportlab requests rich scipy seaborn simpy sklearn statsmodels.api sympy tabulate xlsxwriter yaml; do
        claim "python3 imports $module" "python3 -c 'import $module'"
    done
    claim 'Python packages have all their dependencies' 'pip check'
    claim 'dot, gh, gs, npm, qpdf and tesseract start' \
        'dot -V && gh --version && gs --version && npm --version && qpdf --version && tesseract --version'
    claim 'node finds the modules of the image' \
        'node -e "for (const name of [\"cheerio\", \"js-yaml\", \"jszip\", \"lodash\", \"marked\", \"xml2js\"]) require(name)"'
    claim 'node requires the packages of npm' 'node -e "
for (const name of [\"docx\", \"pdf-lib\", \"pptxgenjs\", \"react\", \"react-dom/server\", \"react-icons/fa\", \"sharp\", \"tsx/cjs/api\",
    \"typescript\"]) require(name)"'
    claim 'node imports the packages of npm' '
        cat >imports.mjs <<JS
for (const name of ["docx", "pdf-lib", "pptxgenjs", "react", "react-dom/server", "react-icons/fa", "sharp", "typescript"]) await import(name);
JS
        node imports.mjs'
    claim 'tsx runs TypeScript, tsc checks it and pnpm starts' '
        echo "const sum: number = 1 + 1; console.log(sum)" >sum.ts
        [ "$(tsx sum.ts)" = 2 ] && tsc --noEmit sum.ts && pnpm --version'
    claim 'sharp draws an SVG' 'node -e "
require(\"sharp\")(Buffer.from(\"<svg xmlns=\\\"http://www.w3.org/2000/svg\\\" width=\\\"9\\\" height=\\\"9\\\"/>\")).png().toFile(\"drawn.png\")" &&
        file drawn.png | grep "9 x 9"'
    claim 'fontconfig knows a typeface for those of documents' '
        while IFS=: read -r name family; do
            found=$(fc-match -f "%{family[0]}" "$name")
            [ "$found" = "$family" ] || { echo "$name: $found instead of $family"; exit 1; }
        done <<FONTS
Arial:Liberation Sans
Calibri:Carlito
Cambria:Caladea
Consolas:Inconsolata
Garamond:EB Garamond
Georgia:Gelasio
Impact:Anton
SimSun:Noto Sans CJK SC
MS Gothic:Noto Sans CJK JP
Malgun Gothic:Noto Sans CJK KR
emoji:Noto Color Emoji
FONTS
        for sign in 4f60 3042 ac00 e01 905 1f600; do fc-list ":charset=$sign" | grep . || { echo "no font for $sign"; exit 1; }; done'
    claim 'LibreOffice embeds typefaces of other scripts and for Georgia' '
        printf "<meta charset=utf-8><p style=\"font-family: Georgia\">Grüße</p><p>你好 こんにちは สวัสดี नमस्ते</p>" >scripts.html
        soffice --headless --convert-to pdf:writer_web_pdf_Export scripts.html && pdffonts scripts.pdf
        for font in Gelasio NotoSansCJK Loma Lohit; do pdffonts scripts.pdf | grep "$font"; done'
    claim 'the font cache of the image is used' '
        caches=$(fc-cache -v --system-only 2>&1) || { echo "$caches"; exit 1; }
        if [[ $caches == *"caching, new cache contents"* ]]; then echo "$caches"; exit 1; fi
        fc-match Arial | grep Liberation'
    claim 'openpyxl writes a workbook' 'python3 -c "
import openpyxl
book = openpyxl.Workbook()
for row in [(\"fruit\", \"pieces\"), (\"apple\", 3), (\"pear\", 4), (\"sum\", \"=SUM(B2:B3)\")]: book.active.append(row)
book.save(\"book.xlsx\")"'
    claim 'LibreOffice converts the workbook to PDF, in a new home' \
        'soffice --headless --convert-to pdf book.xlsx && [ -s book.pdf ]'
    claim 'two instances of LibreOffice convert at the same time' '
        for n in 1 2; do
            echo "a,$n" >parallel-$n.csv
            soffice --headless --convert-to pdf parallel-$n.csv &
        done
        wait
        ls parallel-1.pdf parallel-2.pdf'
    claim 'LibreOffice takes the profile that the command names' \
        'soffice "-env:UserInstallation=file://$PWD/profile" --headless --convert-to pdf book.xlsx && [ -d profile/user ]'
    claim 'LibreOffice calculates the formulas of the workbook' \
        'soffice --headless --convert-to csv book.xlsx && grep -x "sum,7" book.csv'
    claim 'pdftotext reads the PDF' 'pdftotext book.pdf - | grep apple'
    claim 'pypdf, pdfplumber and pypdfium2 read the PDF' 'python3 -c "
import pdfplumber, pypdf, pypdfium2
assert \"apple\" in pypdf.PdfReader(\"book.pdf\").pages[0].extract_text()
assert \"apple\" in pdfplumber.open(\"book.pdf\").pages[0].extract_text()
assert \"apple\" in pypdfium2.PdfDocument(\"book.pdf\")[0].get_textpage().get_text_range()"'
    claim 'qpdf encrypts and checks a PDF' 'qpdf --encrypt a b 256 -- book.pdf locked.pdf && qpdf --check --password=a locked.pdf'
    claim 'pdftoppm and pdf2image draw the PDF' 'pdftoppm -r 150 -png book.pdf page && ls page-1.png && python3 -c "
import pdf2image
assert pdf2image.convert_from_path(\"book.pdf\")[0].width > 100"'
    claim 'ImageMagick draws the PDF' 'convert -density 150 book.pdf book.png && file book.png | grep "PNG image" && identify book.pdf'
    claim 'tesseract reads the picture' 'tesseract page-1.png stdout | grep apple'
    claim 'pytesseract reads the picture' 'python3 -c "
import pytesseract
assert \"apple\" in pytesseract.image_to_string(\"page-1.png\")"'
    claim 'pandoc makes a docx and python-docx reads it' 'printf "# Title\n\nText\n" | pandoc -f markdown -o text.docx && python3 -c "
import docx
assert [p.text for p in docx.Document(\"text.docx\").paragraphs] == [\"Title\", \"Text\"]"'
    claim 'LibreOffice converts the docx to PDF' 'soffice --headless --convert-to pdf text.docx && pdftotext text.pdf - | grep Title'
    claim 'python-pptx makes a presentation and LibreOffice converts it to PDF' 'python3 -c "
import pptx
slides = pptx.Presentation()
slides.slides.add_slide(slides.slide_layouts[0]).shapes.title.text = \"Slide\"
slides.save(\"slides.pptx\")"
        soffice --headless --convert-to pdf slides.pptx && pdftotext slides.pdf - | grep Slide'
    claim 'markitdown reads docx, pdf, pptx and xlsx' \
        'for file in text.docx:Title book.pdf:apple slides.pptx:Slide book.xlsx:apple; do markitdown "${file%:*}" | grep "${file#*:}"; done'
    claim 'reportlab makes a PDF' 'python3 -c "
from reportlab.pdfgen import canvas
page = canvas.Canvas(\"report.pdf\"); page.drawString(72, 72, \"report\"); page.save()" && pdftotext report.pdf - | grep report'
    claim 'xlsxwriter makes a workbook that pandas reads' 'python3 -c "
import pandas
pandas.DataFrame({\"a\": [1, 2]}).to_excel(\"table.xlsx\", engine=\"xlsxwriter\", index=False)
assert pandas.read_excel(\"table.xlsx\")[\"a\"].sum() == 3"'
    claim 'matplotlib draws a chart' 'python3 -W error -c "
import matplotlib.pyplot as plt
plt.plot([1, 2, 4]); plt.title(\"chart\"); plt.savefig(\"chart.png\"); plt.savefig(\"chart.pdf\")" && file chart.png | grep PNG'
    claim 'matplotlib starts with the font cache of the image' '
        [ ! -e ~/.cache/matplotlib/fontlist* ] && python3 -c "
import matplotlib.font_manager as fonts
assert \"LiberationSans\" in fonts.findfont(\"Liberation Sans\")"'
    claim 'Pillow and imageio make a GIF' 'python3 -c "
import imageio.v3, numpy, PIL.Image
frames = [numpy.full((32, 32, 3), shade, dtype=\"uint8\") for shade in (0, 100, 200)]
imageio.v3.imwrite(\"frames.gif\", frames)
assert PIL.Image.open(\"frames.gif\").n_frames == 3"'
    claim 'imageio makes an mp4 with the ffmpeg of the image' 'python3 -c "
import imageio, imageio_ffmpeg, numpy
assert imageio_ffmpeg.get_ffmpeg_exe() == \"/usr/bin/ffmpeg\"
frames = [numpy.full((32, 32, 3), shade, dtype=\"uint8\") for shade in (0, 100, 200)]
imageio.mimsave(\"frames.mp4\", frames, fps=5)
assert sum(1 for frame in imageio.get_reader(\"frames.mp4\")) == 3"'
    claim 'mcp has the names that scripts import' 'python3 -c "
from mcp import ClientSession, StdioServerParameters
from mcp.client.sse import sse_client
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamablehttp_client
from mcp.server.fastmcp import FastMCP"'
    claim 'ffmpeg makes an mp4 and ffprobe reads it' '
        ffmpeg -v error -f lavfi -i testsrc=duration=1:size=64x64:rate=5 -c:v libx264 -pix_fmt yuv420p clip.mp4
        ffprobe -v error -show_entries stream=codec_name -of csv=p=0 clip.mp4 | grep h264'
    claim 'dot makes an SVG and ImageMagick draws it' 'echo "digraph { a -> b }" | dot -Tsvg -o graph.svg && convert graph.svg graph.png'
    claim 'duckdb runs a query' 'python3 -c "
import duckdb
assert duckdb.sql(\"select sum(i) from range(5) t(i)\").fetchall() == [(10,)]"'
    claim 'scikit-learn, scipy, sympy and networkx calculate' 'python3 -c "
import networkx, scipy.optimize, sklearn.linear_model, sympy
assert sklearn.linear_model.LinearRegression().fit([[0], [1]], [0, 2]).predict([[2]])[0].round() == 4
assert round(scipy.optimize.brentq(lambda x: x * x - 4, 0, 3)) == 2
assert sympy.integrate(\"x\") == sympy.sympify(\"x**2/2\")
assert networkx.shortest_path(networkx.path_graph(3), 0, 2) == [0, 1, 2]"'
}

# npm in a command, where WORKSPACE_DIR is set.
check_npm() {
    claim 'npm takes packages of the image for installed' '
        export WORKSPACE_DIR=/workspace
        mkdir there && cd there
        npm install jszip && npm install -g jszip@3 && npm install lodash marked && [ ! -e node_modules ]
        echo "{\"name\": \"a\", \"dependencies\": {\"jszip\": \"^3\"}, \"devDependencies\": {\"lodash\": \"*\"}}" >package.json
        npm install && npm ci && [ ! -e node_modules ]
        npm install --fetch-retries 3 --cpu x64 --save-prefix "~" jszip'
    claim 'npm names what is missing, and that there is no network' '
        export WORKSPACE_DIR=/workspace
        for install in "npm install" "npm install --global"; do
            fails_at_once $install jszip@1 no-such-package 2>errors
            [ "$(wc -l <errors)" = 1 ]
            grep -F "npm error network: commands have no network, so npm can'\''t get jszip@1 (" errors
            grep -F "), no-such-package: packages come with the image" errors
        done
        mkdir lacking && cd lacking
        echo "{\"name\": \"a\", \"dependencies\": {\"no-such-package\": \"1\"}}" >package.json
        fails_at_once npm ci 2>&1 | grep -F "get no-such-package@1: "'
    claim 'npx runs programs of the image, and no others' '
        export WORKSPACE_DIR=/workspace
        [ "$(npx --yes semver 1.2.3)" = 1.2.3 ] && [ "$(npm exec -- semver 1.2.4)" = 1.2.4 ]
        [ "$(npx --package semver -c "semver 1.2.5")" = 1.2.5 ]
        npx node --version
        npx bash -c "exit 7" || [ $? = 7 ]
        npm exec --package=semver node -- --version
        fails_at_once npx --yes no-such-package 2>&1 | grep -F "npx error network: commands have no network"
        fails_at_once npx typescript 2>&1 | grep -F "has no program of its name: its programs are tsc, tsserver: run npx tsc"
        fails_at_once npx jszip 2>&1 | grep -F "has no program of its name: use it by require or import"'
    claim 'npm itself runs scripts and installs local packages' '
        export WORKSPACE_DIR=/workspace
        mkdir -p real/part && cd real
        echo "{\"name\": \"part\", \"version\": \"1.0.0\"}" >part/package.json
        echo "{\"name\": \"a\", \"scripts\": {\"hello\": \"echo hello\"}}" >package.json
        npm run hello | grep -x hello && npm install ./part && [ -e node_modules/part ]'
    claim 'npm without a workspace is Debian'\''s, and it and pnpm try once' '
        for tool in npm pnpm; do
            command -v $tool || continue
            fails_at_once $tool install no-such-package >log 2>&1
            grep -E "EAI_AGAIN|ENOTFOUND" log
            if grep -iE "will retry|commands have no network" log; then exit 1; fi
        done'
}

check_web() {
    claim 'Python packages have all their dependencies' 'pip check'
    claim 'the browser has its libraries' '! ldd /usr/lib/chromium/chromium-headless-shell | grep "not found"'
    cat >page.html <<'HTML'
<!doctype html><meta charset="utf-8"><title>before</title><button onclick="document.title = 'clicked'">Press</button>
HTML
    claim 'the browser takes a picture' '
        chromium --headless --window-size=200,100 --screenshot=page.png page.html && file page.png | grep "200 x 100"'
    claim 'playwright of Python clicks and takes a picture' 'python3 -c "
from playwright.sync_api import sync_playwright
with sync_playwright() as playwright:
    browser = playwright.chromium.launch()
    page = browser.new_page()
    page.goto(\"file:///workspace/work/page.html\")
    page.click(\"button\")
    assert page.title() == \"clicked\", page.title()
    assert page.screenshot()[1:4] == b\"PNG\"
    browser.close()"'
    claim 'playwright and puppeteer of npm open a page' 'node -e "
const { chromium } = require(\"playwright\"), puppeteer = require(\"puppeteer\");
require(\"puppeteer-core\");
(async () => {
    for (const launcher of [chromium, puppeteer]) {
        const browser = await launcher.launch(), page = await browser.newPage();
        await page.goto(\"file:///workspace/work/page.html\");
        if (await page.title() !== \"before\") process.exit(1);
        await browser.close();
    }
})()"'
    claim 'the full browser of playwright is that of the image, too' 'node -e "
require(\"playwright\").chromium.launch({ channel: \"chromium\" }).then(browser => browser.close())"'
    claim 'browsers of other versions of playwright are found' '
        locked=$(jq -r ".browsers[] | select(.name == \"chromium\") | .revision" \
            /usr/local/lib/node_modules/playwright/node_modules/playwright-core/browsers.json)
        for revision in 1000 1091 1148 $((locked + 300)); do
            for path in chromium-$revision/chrome-linux/chrome chromium-$revision/chrome-linux64/chrome \
                chromium_headless_shell-$revision/chrome-linux/headless_shell \
                chromium_headless_shell-$revision/chrome-headless-shell-linux64/chrome-headless-shell; do
                [ -x "$PLAYWRIGHT_BROWSERS_PATH/$path" ] || { echo "$path is missing"; exit 1; }
            done
        done'
    claim 'playwright has nothing to download' '
        playwright install && node /usr/local/lib/node_modules/playwright/cli.js install chromium'
}

check_base
if [ -x /usr/bin/npm ]; then check_npm; fi
if [ "$content" = office ]; then check_office; fi
if [ "$content" = web ]; then check_web; fi
if ((${#missing[@]})); then
    printf '  missing: %s\n' "${missing[@]}" >&2
    exit 1
fi
