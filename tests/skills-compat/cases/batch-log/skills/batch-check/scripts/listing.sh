#!/usr/bin/env bash
# Prints numbered lines of some length.
for ((line = 1; line <= $1; line++)); do
    printf 'line %05d: %s\n' "$line" 'the quick brown fox jumps over the lazy dog'
done
