#!/usr/bin/env python3
"""Gives the files of tests/interop/main.rs to the standard readers.

Usage: hlog_reader.py DIRECTORY RESULTS. Needs the packages hdrhistogram and prometheus-client, a Java
runtime and HdrHistogram's jar ($HDR_JAR). Appends one row per check to RESULTS, exits with 1 if any failed.
"""

import importlib.metadata
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from hdrh.histogram import HdrHistogram
from hdrh.log import HistogramLogReader
from prometheus_client.parser import text_string_to_metric_families

# A step of a histogram of 2 digits is at most this part of its value.
STEP = 1 / 128
LONGEST = 3_600_000_000_000
JAR = os.environ.get("HDR_JAR", "/usr/share/java/hdrhistogram.jar")
PROCESSOR = ["java", "-cp", JAR, "org.HdrHistogram.HistogramLogProcessor"]


def near(found, expected, what):
    if abs(found - expected) > expected * STEP + 0.011:
        raise AssertionError(f"{what}: {found} instead of {expected}")


def same(found, expected, what):
    if found != expected:
        raise AssertionError(f"{what}: {found!r} instead of {expected!r}")


def expectations(directory):
    for line in (directory / "expected.txt").read_text().splitlines():
        tag, *numbers = line.split()
        yield tag, [int(n) for n in numbers]


def python_reader(directory):
    reader = HistogramLogReader(str(directory / "known.hlog"), HdrHistogram(1, LONGEST, 2))
    sums = {}
    starts = []
    while True:
        interval = reader.get_next_interval_histogram()
        if interval is None:
            break
        tag = interval.get_tag()
        sums.setdefault(tag, HdrHistogram(1, LONGEST, 2)).add(interval)
        starts.append((tag, interval.get_start_time_stamp(), interval.get_end_time_stamp()))
    base = 1796035240026.0
    wanted = [(tag, base + i * 1000, base + i * 1000 + 1000) for i in range(3) for tag in ("request", "send_wait")]
    for found, expected in zip(starts, wanted, strict=True):
        same(found[0], expected[0], "tag")
        for f, e in zip(found[1:], expected[1:]):
            if abs(f - e) > 0.5:
                raise AssertionError(f"time: {f} instead of {e}")
    same(reader.get_start_time_sec(), base / 1000, "StartTime")
    for tag, (count, largest, *quantiles) in expectations(directory):
        h = sums.pop(tag)
        same(h.get_total_count(), count, f"{tag}: count")
        near(h.get_max_value(), largest, f"{tag}: max")
        for percent, expected in zip((50, 99, 99.9), quantiles):
            near(h.get_value_at_percentile(percent), expected, f"{tag}: p{percent}")
    same(list(sums), [], "other tags")


def table(path):
    """The rows of a percentile table and the numbers below it."""
    rows, below = [], {}
    for line in path.read_text().splitlines():
        row = re.match(r"\s*([\d.]+)\s+([\d.]+)\s+(\d+)(?:\s+([\d.]+))?$", line)
        if row:
            rows.append((float(row[1]), float(row[2]), int(row[3])))
        for key, value in re.findall(r"(\w[\w ]*?)\s+=\s+([\d.]+)", line if line.startswith("#[") else ""):
            below[key] = float(value)
    return rows, below


def java_log(directory):
    log = str(directory / "known.hlog")
    tags = subprocess.run([*PROCESSOR, "-i", log, "-listtags"], check=True, capture_output=True, text=True).stdout
    same(tags.split()[-2:], ["request", "send_wait"], "tags")
    for tag, (count, largest, *quantiles) in expectations(directory):
        with tempfile.TemporaryDirectory() as scratch:
            out = Path(scratch) / "out"
            command = [*PROCESSOR, "-i", log, "-tag", tag, "-outputValueUnitRatio", "1000", "-o", str(out)]
            said = subprocess.run(command, check=True, capture_output=True, text=True)
            if "malformed" in said.stdout + said.stderr:
                raise AssertionError(said.stdout + said.stderr)
            last = out.read_text().splitlines()[-1]
            totals = re.search(r"T:(\d+) \(\s*([\d. ]+)\)", last)
            same(int(totals[1]), count, f"{tag}: count")
            p50, _, p99, p999, _, top = (float(v) * 1000 for v in totals[2].split())
            for name, f, e in zip(("max", "p50", "p99", "p99.9"), (top, p50, p99, p999), (largest, *quantiles)):
                near(f, e, f"{tag}: {name}")
            indented(directory / f"known.{tag}.hgrm")
            compare_tables(table(directory / f"known.{tag}.hgrm"), table(Path(f"{out}.hgrm")), tag)


def indented(path):
    """Plotting tools find rows by their leading white space; the reference loses it for large values."""
    bare = [line for line in path.read_text().splitlines() if re.match(r"[\d.]", line)]
    same(bare, [], "rows without leading white space")


def compare_tables(ours, theirs, tag):
    same(len(ours[0]), len(theirs[0]), f"{tag}: rows")
    for (value, quantile, count), (their_value, their_quantile, their_count) in zip(ours[0], theirs[0]):
        near(value, their_value, f"{tag}: value at {quantile}")
        if abs(quantile - their_quantile) > 1e-9:
            raise AssertionError(f"{tag}: row {quantile} beside {their_quantile}")
        near(count, their_count, f"{tag}: count at {quantile}")
    same(sorted(ours[1]), sorted(theirs[1]), f"{tag}: names below the table")
    for key, value in ours[1].items():
        near(value, theirs[1][key], f"{tag}: {key}")


def scraper(directory):
    families = {f.name: f for f in text_string_to_metric_families((directory / "metrics.txt").read_text())}
    histogram = families["afflux_latency_request_seconds"]
    same(histogram.type, "histogram", "type")
    counts = [s.value for s in histogram.samples if s.name.endswith("_count")]
    same(counts, [10000.0], "count")
    dropped = {s.labels["reason"] for s in families["afflux_peer_messages_dropped"].samples}
    if not {"no_handler", "malformed", "late_reply", "lost_on_detach", "in_doubt_on_detach"} <= dropped:
        raise AssertionError(f"reasons: {dropped}")
    unnamed = [n for n, f in families.items() if not f.documentation or f.type == "unknown" or not f.samples]
    same(unnamed, [], "families without help, type or samples")


def main(directory, results):
    version = importlib.metadata.version
    checks = [
        (f"hdrhistogram {version('hdrhistogram')} (Python)", ".hlog, 2 tags, 3 intervals", python_reader),
        ("HistogramLogProcessor (Java)", ".hlog and .hgrm", java_log),
        (f"prometheus-client {version('prometheus-client')}", "metrics text", scraper),
    ]
    failed = False
    for client, subject, check in checks:
        try:
            check(directory)
            outcome = "ok"
        except Exception as e:  # every failure of a reader is an outcome
            outcome, failed = f"FAILED: {type(e).__name__}: {e}", True
        with open(results, "a", encoding="utf-8") as out:
            print(client, "-", "-", "file -> reader", subject, outcome, sep="\t", file=out)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
