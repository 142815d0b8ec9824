#!/bin/sh
# Installs the build in $1 into a new folder and runs the installed programs.
set -eu
prefix=$(mktemp -d)
trap 'rm -rf "$prefix"' EXIT
cmake --install "$1" --prefix "$prefix" >"$prefix/log" 2>&1 || { cat "$prefix/log"; exit 1; }
"$prefix/bin/quired" --version
"$prefix/bin/quire" --version
# Profiles are found relative to the program.
QUIRE__PROFILE=ci-tiny "$prefix/bin/quired" --print-effective-config | grep -q 'page_size: 16 '
for file in share/doc/quire/LICENSE share/doc/quire/README.md \
            share/quire/proto/quire/v1/generation.proto share/quire/proto/vllm/grpc/engine/vllm_engine.proto share/quire/configs/default.yaml \
            share/man/man1/quire.1 share/man/man8/quired.8 \
            share/bash-completion/completions/quire share/zsh/vendor-completions/_quire \
            share/fish/vendor_completions.d/quire.fish; do
  [ -s "$prefix/$file" ] || { echo "not installed: $file"; exit 1; }
done
echo "installed $(find "$prefix" -type f | wc -l) files"
