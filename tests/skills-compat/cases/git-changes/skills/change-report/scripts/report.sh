#!/bin/bash
# Reports the last change of a repository as Markdown.
set -e
cd "$1"
echo "# $(git log -1 --format=%s)"
echo
git diff --name-status --find-renames HEAD~1 | awk -F'\t' '
    $1 == "A" { print "- added " $2 }
    $1 == "D" { print "- removed " $2 }
    $1 == "M" { print "- changed " $2 }
    $1 ~ /^R/ { print "- renamed " $2 " to " $3 }'
echo
git diff --shortstat HEAD~1 | sed 's/^ //'
