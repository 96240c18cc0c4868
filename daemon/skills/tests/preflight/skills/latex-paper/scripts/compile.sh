#!/bin/sh
set -eu
file=${1%.tex}
if command -v latexmk >/dev/null 2>&1; then
    latexmk -pdf -interaction=nonstopmode "$file.tex"
else
    pdflatex -interaction=nonstopmode "$file.tex"
    if grep -q '\\bibdata' "$file.aux"; then bibtex "$file"; fi
    pdflatex -interaction=nonstopmode "$file.tex"
    pdflatex -interaction=nonstopmode "$file.tex"
fi
[ -f "$file.pdf" ] && echo "wrote $file.pdf"
