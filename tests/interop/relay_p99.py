#!/usr/bin/env python3
"""The relay's own figures against its histogram log, read by the standard reader.

Usage: relay_p99.py RELAY DIRECTORY RESULTS. RELAY is the example's program; it runs for some seconds and writes into
DIRECTORY. Needs the package hdrhistogram. Appends one row per check to RESULTS, exits with 1 if any failed.
"""

import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path

from hdrh.histogram import HdrHistogram
from hdrh.log import HistogramLogReader

# A step of a histogram of 2 digits is at most this part of its value.
STEP = 1 / 128
LONGEST = 3_600_000_000_000
PATIENCE = 120
# The times that a relay keeps apart, but for those that a short run may not have.
TAGS = {"request", "queue_age", "batch_age", "store_commit"}


def check(relay, directory):
    report = directory / "relay.json"
    arguments = ["--seconds", "4", "--outstanding", "256", "--out", directory, "--store", directory / "store"]
    done = subprocess.run([relay, *arguments, "--json", report], capture_output=True, text=True, timeout=PATIENCE)
    if done.returncode != 0:
        raise AssertionError(f"exit code {done.returncode}: {done.stderr[-400:]}")
    figures = json.loads(report.read_text())
    reader = HistogramLogReader(str(directory / "relay.hlog"), HdrHistogram(1, LONGEST, 2))
    sums = {}
    while (interval := reader.get_next_interval_histogram()) is not None:
        sums.setdefault(interval.get_tag(), HdrHistogram(1, LONGEST, 2)).add(interval)
    if not TAGS <= sums.keys():
        raise AssertionError(f"tags {sorted(sums)}")
    for name, percentile in [("p50_us", 50), ("p99_us", 99), ("p999_us", 99.9)]:
        printed, read = figures[name], sums["request"].get_value_at_percentile(percentile) / 1e3
        if abs(printed - read) > printed * STEP:
            raise AssertionError(f"{name}: {printed} printed, {read} in the log")
    if sums["request"].get_total_count() == 0 or figures["lost"] or figures["duplicated"]:
        raise AssertionError(f"{figures['lost']} lost, {figures['duplicated']} duplicated")


def main():
    relay, directory, results = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    directory.mkdir(parents=True, exist_ok=True)
    try:
        check(relay, directory)
        outcome = "ok"
    except Exception as e:  # whatever it was, it is a row of the table
        outcome = f"FAILED: {type(e).__name__}: {e}".replace("\n", " ").replace("\t", " ")
    reader = f"hdrhistogram {importlib.metadata.version('hdrhistogram')}"
    with open(results, "a", encoding="utf-8") as rows:
        rows.write("\t".join([reader, "relay.hlog", "-", "percentiles printed and read", "-", outcome]) + "\n")
    sys.exit(outcome != "ok")


if __name__ == "__main__":
    main()
