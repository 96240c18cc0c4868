#!/bin/bash
# Commits the content of a folder: snapshot.sh REPOSITORY FOLDER MESSAGE
set -e
if [ ! -d "$1/.git" ]; then
    git init --quiet --initial-branch main "$1"
    git config --global user.name "Change Report"
    git config --global user.email "change-report@example.org"
fi
find "$1" -mindepth 1 -maxdepth 1 ! -name .git -exec rm -r {} +
cp -r "$2/." "$1"
git -C "$1" add --all
git -C "$1" commit --quiet --message "$3"
git -C "$1" log -1 --format='committed %s'
