#!/usr/bin/env bash
# Two nodes on one machine, over 127.0.0.1: launch/two_nodes_loopback.sh config=NAME key=value ...
#
# RANKS (1): ranks on each node.  PORT (29400): the port of torchrun's rendezvous.  JOB: its id, new for each run.
# ASYNCRL_KEY_FILE: the job's key; made for this run when it is not set.
set -euo pipefail
if [ $# -lt 1 ]; then
  echo "usage: $0 config=NAME key=value ..." >&2
  exit 2
fi
ranks=${RANKS:-1} port=${PORT:-29400} job=${JOB:-asyncrl-$$}

keys=
if [ -z "${ASYNCRL_KEY_FILE:-}" ]; then
  keys=$(mktemp -d)
  (umask 077 && head -c 32 /dev/urandom > "$keys/key")
  export ASYNCRL_KEY_FILE=$keys/key
fi

agents=()
end() {
  if [ ${#agents[@]} -gt 0 ]; then
    kill -TERM "${agents[@]}" 2> /dev/null || true
    wait
  fi
  if [ -n "$keys" ]; then
    rm -rf "$keys"
  fi
}
trap end EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

for _ in 0 1; do
  torchrun --nnodes 2 --nproc-per-node "$ranks" --rdzv-backend c10d --rdzv-endpoint "127.0.0.1:$port" --rdzv-id "$job" \
    -m asyncrl.launch trainer.nnodes=2 "trainer.n_gpus_per_node=$ranks" "$@" &
  agents+=($!)
done

code=0
for agent in "${agents[@]}"; do
  wait "$agent" || code=$?
done
agents=()
exit "$code"
