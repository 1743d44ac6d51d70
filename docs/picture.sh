#!/usr/bin/env bash
# Makes docs/report.png, the picture of a report in README.md: runs the demo, writes the page of its snapshot, and takes a
# picture of it with Chromium.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cargo build --locked --bin trtalloc
trtalloc=${CARGO_TARGET_DIR:-target}/debug/trtalloc
"$trtalloc" demo --short --snapshot "$folder/demo.pickle" >/dev/null
"$trtalloc" report "$folder/demo.pickle" -o "$folder/demo.html" >/dev/null
browser=$(command -v chromium-headless-shell || command -v chromium)
HOME=$folder "$browser" --headless --no-sandbox --disable-gpu --hide-scrollbars --force-device-scale-factor=1 \
    --window-size=1200,680 --virtual-time-budget=5000 --screenshot="$folder/report.png" "file://$folder/demo.html"
mv "$folder/report.png" docs/report.png
