#!/usr/bin/env bash
set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
mkdir -p dist build

need() {
  for c; do command -v "$c" >/dev/null || { echo "missing: $c" >&2; exit 127; }; done
}
need pandoc xelatex mmdc

cat > build/meta.yaml <<EOF
title: "${TITLE:-Untitled}"
date: "$(date +%F)"
lang: en-GB
note: "built with ebook-tools; kindlegen not used"
EOF

# diagrams
while IFS= read -r -d '' m; do
  mmdc --quiet -i "$m" -o "build/$(basename "${m%.mmd}").png"
done < <(find . -name '*.mmd' -print0)

common=(--metadata-file build/meta.yaml --filter "$here/callouts.py" --lua-filter "$here/wordcount.lua" --toc)

pandoc "${common[@]}" --pdf-engine=xelatex -o dist/book.pdf "$@" &
pandoc "${common[@]}" -t epub3 -o build/book.epub "$@" &
pandoc "${common[@]}" -t docx -o dist/book.docx "$@" &
wait

# repack epub so that mimetype comes first and uncompressed
python3 "$here/repack.py" build/book.epub build/epub
( cd build/epub && zip -qX0 ../../dist/book.epub mimetype && zip -qXr9D ../../dist/book.epub . -x mimetype )

pages=$(pdfinfo dist/book.pdf | awk '/^Pages/ {print $2}')
echo "done: $pages pages"
