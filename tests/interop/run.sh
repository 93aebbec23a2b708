#!/usr/bin/env bash
# Other people's programs against ours: stock ZeroMQ clients against the echo example, the standard readers against
# our histogram files. Installs what it needs into target/interop and by apt; what it cannot get is a failure in
# the table, never left out of it.
set -euo pipefail
exec </dev/null
cd "$(dirname "$0")/../.."

target=${CARGO_TARGET_DIR:-$PWD/target}
dir=$target/interop
results=$dir/results.tsv
mkdir -p "$dir/files"
rm -f "$dir"/files/*
: >"$results"
failed=0

apt_updated=
apt() {
    [[ -n $apt_updated ]] || apt-get -qq update
    apt_updated=yes
    DEBIAN_FRONTEND=noninteractive apt-get -qq install -y "$@"
}

# A set of Python packages each: they do not all bear each other.
venv() {
    local at=$dir/$1
    shift
    if [[ ! -x $at/bin/pip ]]; then
        rm -rf "$at"
        python3 -m venv "$at" || { apt python3-venv && python3 -m venv --clear "$at"; }
    fi
    "$at/bin/pip" --quiet --disable-pip-version-check install "$@"
}

# check WHAT SCRIPT ARGUMENT..: the script adds its rows; if it adds none, that is a row.
check() {
    local what=$1 before after
    shift
    before=$(wc -l <"$results")
    "$@" || failed=1
    after=$(wc -l <"$results")
    if ((after == before)); then
        missing "$what" "it ended without a result"
    fi
}

missing() {
    printf '%s\t-\t-\t-\t-\tFAILED: %s\n' "$1" "$2" >>"$results"
    failed=1
}

if AFFLUX_INTEROP_DIR=$dir/files cargo test --locked --quiet --test interop; then
    command -v java >/dev/null || apt default-jre-headless || missing Java "no Java runtime"
    [[ -e /usr/share/java/hdrhistogram.jar ]] || apt libhdrhistogram-java || missing HistogramLogProcessor "no libhdrhistogram-java"
    if venv hdr 'hdrhistogram>=0.10.8' 'prometheus-client>=0.21'; then
        check "histogram readers" "$dir/hdr/bin/python" tests/interop/hlog_reader.py "$dir/files" "$results"
        if cargo build --locked --quiet --release --example relay; then
            rm -rf "$dir/relay"
            check "the relay's log" "$dir/hdr/bin/python" tests/interop/relay_p99.py \
                "$target/release/examples/relay" "$dir/relay" "$results"
        else
            missing "the relay's log" "the relay does not build"
        fi
    else
        missing "histogram readers" "pip could not install hdrhistogram and prometheus-client"
    fi
else
    missing "histogram readers" "the files were not written"
fi

if ! cargo build --locked --quiet --release --example={echo,zmq_client,publisher,subscriber,one_port}; then
    missing "stock ZeroMQ clients" "the examples do not build"
elif venv zmq 'pyzmq>=27'; then
    export PYTHONDONTWRITEBYTECODE=1
    examples=$target/release/examples
    check "stock ZeroMQ clients" "$dir/zmq/bin/python" tests/interop/zmq_echo.py "$examples/echo" "$results"
    check "stock ZeroMQ services" "$dir/zmq/bin/python" tests/interop/zmq_served.py \
        "$examples/zmq_client" "$examples/echo" "$results"
    check "stock publishers and subscribers" "$dir/zmq/bin/python" tests/interop/zmq_pubsub.py \
        "$examples/publisher" "$examples/subscriber" "$results"
    # The C API of the system's library, which is another version than pyzmq's own.
    [[ -e /usr/include/zmq.h ]] || apt libzmq3-dev || true
    command -v cc >/dev/null || apt gcc libc6-dev || true
    if cc -O1 -Wall -Wextra -Werror -o "$dir/zmq_client" tests/interop/zmq_client.c -lzmq; then
        check "every socket at one port" "$dir/zmq/bin/python" tests/interop/zmq_port.py \
            "$examples/one_port" "$examples/zmq_client" "$dir/zmq_client" "$results"
    else
        missing "every socket at one port" "no libzmq3-dev, or no compiler for its C API"
    fi
else
    missing "stock ZeroMQ clients" "pip could not install pyzmq"
fi

python3 - "$results" <<'PYTHON'
import sys

rows = [["client", "socket types", "mechanism", "direction", "sizes", "outcome"]]
rows += [line.rstrip("\n").split("\t") for line in open(sys.argv[1], encoding="utf-8")]
widths = [max(len(row[i]) for row in rows) for i in range(5)]
print()
for row in rows:
    print("  ".join([*(cell.ljust(width) for cell, width in zip(row, widths)), row[5]]))
PYTHON
exit "$failed"
