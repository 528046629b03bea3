#!/usr/bin/env bash
# One node: launch/local.sh RANKS config=NAME key=value ...
# The same as `asyncrl train --nproc-per-node RANKS ...`, without the checks that come before torchrun.
set -euo pipefail
if [ $# -lt 2 ]; then
  echo "usage: $0 RANKS config=NAME key=value ..." >&2
  exit 2
fi
ranks=$1
shift
exec torchrun --standalone --nproc-per-node "$ranks" -m asyncrl.launch "$@"
