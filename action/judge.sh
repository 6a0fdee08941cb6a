#!/usr/bin/env bash
# Simulates the script at the commit BASE and at HEAD, compares both, and writes the verdict.
# Needs git, phantora, and the variables of action.yml. Ends with 1 if the verdict fails.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$FOLDER"
head=$(git rev-parse --abbrev-ref HEAD)
[ "$head" != HEAD ] || head=$(git rev-parse HEAD)

simulate() { # LOG
  # shellcheck disable=SC2086  # lists of words
  phantora trace --cluster "$CLUSTER" $OPTIONS --no-summary --force -o "$1" $SCRIPT
}

git checkout --quiet "$BASE"
trap 'git checkout --quiet "$head"' EXIT
simulate "$FOLDER/base.arrow"
git checkout --quiet "$head"
trap - EXIT
simulate "$FOLDER/head.arrow"

status=0
phantora diff "$FOLDER/base.arrow" "$FOLDER/head.arrow" --fail-above "$LIMIT" --json > "$FOLDER/diff.json" || status=$?
[ "$status" -le 1 ] || exit "$status"
python3 "$here/comment.py" "$FOLDER/diff.json" "$FOLDER/comment.md"
