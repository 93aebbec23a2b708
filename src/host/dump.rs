//! Histogram files that the standard tools read: interval logs (`.hlog`) and percentile tables
//! (`.hgrm`).
//!
//! A [`HistogramLog`] owns its file and writes whole lines only, so that a log whose writer died
//! can still be read. It holds one line in memory at a time. Intervals stand in time order, each
//! with a start relative to the log's base time in steps of a millisecond. Nobody here reads a
//! clock.
//!
//! The forms are those of the Java reference, because that is what the tools were written against:
//! both a StartTime and a BaseTime (with one alone, readers guess), compressed payloads only, the
//! largest value of an interval in milliseconds for histograms in nanoseconds.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use hdrhistogram::Histogram;
use hdrhistogram::serialization::V2DeflateSerializer;
use hdrhistogram::serialization::interval_log::{IntervalLogWriterBuilder, Tag};

use crate::meter::{Latency, LatencySet};

/// From the nanoseconds of a histogram to the milliseconds of an interval's largest value.
const MAX_DIVISOR: f64 = 1e6;

/// From the nanoseconds of a histogram to the microseconds of a percentile table.
pub const MICROS: f64 = 1e3;

/// An interval log that is being written.
#[derive(Debug)]
pub struct HistogramLog {
    path: PathBuf,
    file: File,
    last_start: f64,
}

impl HistogramLog {
    /// Creates the file, or empties it, and writes the header. `base` is the wall clock in seconds
    /// since 1970 to which the intervals' starts are relative.
    pub fn create(path: impl AsRef<Path>, base: f64) -> io::Result<HistogramLog> {
        let path = path.as_ref().to_owned();
        if !(0.0..1e12).contains(&base) {
            return Err(refused(&path, format!("{base} is no number of seconds since 1970")));
        }
        let header = format!(
            "#[Logged with afflux {}]\n\
             #[Histogram log format version 1.3]\n\
             #[StartTime: {base:.3} (seconds since epoch), {}]\n\
             #[BaseTime: {base:.3} (seconds since epoch)]\n\
             #[MaxValueDivisor: {MAX_DIVISOR:.3}]\n\
             \"StartTimestamp\",\"Interval_Length\",\"Interval_Max\",\"Interval_Compressed_Histogram\"\n",
            env!("CARGO_PKG_VERSION"),
            date(base as u64),
        );
        let mut log = HistogramLog { file: File::create(&path).map_err(named(&path))?, path, last_start: 0.0 };
        log.file.write_all(header.as_bytes()).map_err(named(&log.path))?;
        Ok(log)
    }

    /// Appends one interval of one histogram in nanoseconds: `start` and `length` in seconds,
    /// `start` since the base time. An empty tag is no tag.
    ///
    /// Refused as [`io::ErrorKind::InvalidInput`], with nothing written: a tag with a comma, a blank
    /// or a line break, and a start before that of the previous interval, which no reader forgives.
    pub fn interval(&mut self, tag: &str, start: f64, length: f64, histogram: &Histogram<u64>) -> io::Result<()> {
        let tag = match Tag::new(tag) {
            Some(_) if tag.is_empty() => None,
            Some(valid) if !tag.contains('\t') => Some(valid),
            _ => return Err(refused(&self.path, format!("{tag:?} cannot be a tag"))),
        };
        let seconds = |s: f64| Duration::try_from_secs_f64(s).map_err(|e| refused(&self.path, format!("{s} s: {e}")));
        let (from, lasting) = (seconds(start)?, seconds(length)?);
        if start < self.last_start {
            let last = self.last_start;
            return Err(refused(&self.path, format!("an interval from {start:.3} s after one from {last:.3} s")));
        }
        let line = self.line(tag, from, lasting, histogram).map_err(named(&self.path))?;
        self.file.write_all(&line).map_err(named(&self.path))?;
        self.last_start = start;
        Ok(())
    }

    /// Appends one interval of each histogram in which something was recorded, under its own tag.
    pub fn set(&mut self, start: f64, length: f64, set: &LatencySet) -> io::Result<()> {
        Latency::ALL
            .into_iter()
            .filter(|&what| !set.get(what).is_empty())
            .try_for_each(|what| self.interval(what.tag(), start, length, set.get(what)))
    }

    /// Waits until what was written is on the disk. A log that is only dropped is whole too, as far
    /// as the operating system lives.
    pub fn sync(&self) -> io::Result<()> {
        self.file.sync_all().map_err(named(&self.path))
    }

    fn line(
        &self,
        tag: Option<Tag<'_>>,
        start: Duration,
        length: Duration,
        histogram: &Histogram<u64>,
    ) -> io::Result<Vec<u8>> {
        let mut text = Vec::new();
        IntervalLogWriterBuilder::new()
            .with_max_value_divisor(MAX_DIVISOR)
            .begin_log_with(&mut text, &mut V2DeflateSerializer::new())?
            .write_histogram(histogram, start, length, tag)
            .map_err(io::Error::other)?;
        // A writer that is told a divisor says so in a comment first; our header has said it.
        let comment = text.iter().position(|&b| b == b'\n').filter(|_| text.starts_with(b"#"));
        Ok(text.split_off(comment.map_or(0, |end| end + 1)))
    }
}

/// Writes the percentile table of one histogram, with its values divided by `unit_ratio`:
/// [`MICROS`] turns nanoseconds into microseconds.
pub fn write_hgrm(path: impl AsRef<Path>, histogram: &Histogram<u64>, unit_ratio: f64) -> io::Result<()> {
    let path = path.as_ref();
    if !(unit_ratio.is_finite() && unit_ratio > 0.0) {
        return Err(refused(path, format!("values cannot be divided by {unit_ratio}")));
    }
    std::fs::write(path, percentiles(histogram, unit_ratio)).map_err(named(path))
}

/// Writes a percentile table in microseconds for each histogram in which something was recorded:
/// `<prefix>.<tag>.hgrm`.
pub fn write_hgrm_set(prefix: impl AsRef<Path>, set: &LatencySet) -> io::Result<()> {
    for what in Latency::ALL.into_iter().filter(|&what| !set.get(what).is_empty()) {
        let mut path = prefix.as_ref().as_os_str().to_owned();
        path.push(format!(".{}.hgrm", what.tag()));
        write_hgrm(PathBuf::from(path), set.get(what), MICROS)?;
    }
    Ok(())
}

fn percentiles(h: &Histogram<u64>, ratio: f64) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "{:>12} {:>14} {:>10} {:>14}\n", "Value", "Percentile", "TotalCount", "1/(1-Percentile)");
    let mut count = 0;
    for step in h.iter_quantiles(5) {
        count += step.count_since_last_iteration();
        let (value, quantile) = (step.value_iterated_to() as f64 / ratio, step.quantile_iterated_to());
        // Twelve columns like the reference's, but never without a leading blank: plotting tools skip such rows.
        let _ = write!(out, " {value:11.3} {quantile:.12} {count:10}");
        let _ = match quantile {
            q if q < 1.0 => writeln!(out, " {:14.2}", 1.0 / (1.0 - q)),
            _ => writeln!(out),
        };
    }
    let (mean, deviation) = (h.mean() / ratio, h.stdev() / ratio);
    let _ = writeln!(out, "#[Mean    = {mean:12.3}, StdDeviation   = {deviation:12.3}]");
    let _ = writeln!(out, "#[Max     = {:12.3}, Total count    = {:12}]", h.max() as f64 / ratio, h.len());
    let buckets = usize::from(h.buckets());
    let sub_buckets = 2 * h.distinct_values() / (buckets + 1);
    let _ = writeln!(out, "#[Buckets = {buckets:12}, SubBuckets     = {sub_buckets:12}]");
    out
}

/// `Mon Nov 30 10:40:40 UTC 2026`.
fn date(seconds: u64) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let (days, time) = (seconds / 86_400, seconds % 86_400);
    // Whole cycles of the calendar first, so that the walk over the years is short.
    let (mut year, mut day) = (1970 + days / 146_097 * 400, days % 146_097);
    while day >= 365 + u64::from(leap(year)) {
        day -= 365 + u64::from(leap(year));
        year += 1;
    }
    let lengths = [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while day >= lengths[month] {
        day -= lengths[month];
        month += 1;
    }
    format!(
        "{} {} {:02} {:02}:{:02}:{:02} UTC {year}",
        DAYS[(days % 7) as usize],
        MONTHS[month],
        day + 1,
        time / 3600,
        time / 60 % 60,
        time % 60,
    )
}

fn named(path: &Path) -> impl FnOnce(io::Error) -> io::Error {
    move |e| io::Error::new(e.kind(), format!("{}: {e}", path.display()))
}

fn refused(path: &Path, why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("{}: {why}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meter::latency;

    fn scratch(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("afflux-dump-{}-{name}", std::process::id()))
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "Thu Jan 01 00:00:00 UTC 1970"),
            (951_782_399, "Mon Feb 28 23:59:59 UTC 2000"),
            (951_782_400, "Tue Feb 29 00:00:00 UTC 2000"),
            (1_796_035_240, "Mon Nov 30 10:40:40 UTC 2026"),
            (4_107_542_400, "Mon Mar 01 00:00:00 UTC 2100"),
            (16_725_225_600, "Fri Jan 01 00:00:00 UTC 2500"),
        ] {
            assert_eq!(date(seconds), text);
        }
    }

    #[test]
    fn a_header_says_when_and_lines_say_what() {
        let path = scratch("header.hlog");
        let mut log = HistogramLog::create(&path, 1_796_035_240.026).unwrap();
        let mut h = latency::empty();
        h.record(2_000_000).unwrap();
        log.interval("core0", 0.0, 1.0, &h).unwrap();
        log.interval("", 1.0, 0.5, &h).unwrap();
        log.sync().unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("#[Logged with afflux "));
        assert_eq!(lines[1], "#[Histogram log format version 1.3]");
        assert_eq!(lines[2], "#[StartTime: 1796035240.026 (seconds since epoch), Mon Nov 30 10:40:40 UTC 2026]");
        assert_eq!(lines[3], "#[BaseTime: 1796035240.026 (seconds since epoch)]");
        assert!(lines[5].starts_with("\"StartTimestamp\",\"Interval_Length\""));
        assert!(lines[6].starts_with("Tag=core0,0.000,1.000,2.0"), "{}", lines[6]);
        assert!(lines[7].starts_with("1.000,0.500,2.0"), "{}", lines[7]);
        assert!(lines[6..].iter().all(|l| l.contains(",HISTFAAAA")));
        assert_eq!(lines.len(), 8);
        assert!(text.ends_with('\n'));
    }

    #[test]
    fn what_no_reader_could_read_is_refused_and_leaves_the_log_whole() {
        let path = scratch("refused.hlog");
        let mut log = HistogramLog::create(&path, 0.0).unwrap();
        let h = latency::empty();
        log.interval("a", 5.0, 1.0, &h).unwrap();
        let before = std::fs::read(&path).unwrap();
        for (tag, start, length) in [
            ("a,b", 6.0, 1.0),
            ("a b", 6.0, 1.0),
            ("a\n", 6.0, 1.0),
            ("a\t", 6.0, 1.0),
            ("a", 4.0, 1.0),
            ("a", f64::NAN, 1.0),
            ("a", 6.0, -1.0),
        ] {
            let e = log.interval(tag, start, length, &h).unwrap_err();
            assert_eq!(e.kind(), io::ErrorKind::InvalidInput, "{tag:?} {start} {length}");
            assert!(e.to_string().starts_with(&path.display().to_string()), "{e}");
        }
        assert_eq!(std::fs::read(&path).unwrap(), before);
        log.interval("b", 5.0, 1.0, &h).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(HistogramLog::create(&path, f64::NAN).is_err());
        assert!(write_hgrm(&path, &h, 0.0).is_err());
    }

    #[test]
    fn errors_name_the_file() {
        let path = Path::new("/nonexistent/afflux/x.hlog");
        let e = HistogramLog::create(path, 0.0).unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::NotFound);
        assert!(e.to_string().starts_with("/nonexistent/afflux/x.hlog: "), "{e}");
        assert!(write_hgrm(path, &latency::empty(), MICROS).unwrap_err().to_string().contains("x.hlog"));
    }

    #[test]
    fn a_table_ends_in_its_largest_value_and_the_counts() {
        let mut h = latency::empty();
        for us in 1..=999 {
            h.record(us * 1000).unwrap();
        }
        h.record(1_000_000_000_000).unwrap();
        let table = percentiles(&h, MICROS);
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines[0], "       Value     Percentile TotalCount 1/(1-Percentile)");
        assert_eq!(lines[1], "");
        assert!(lines[2].ends_with("0.000000000000          1           1.00"), "{}", lines[2]);
        let rows = &lines[2..lines.len() - 3];
        assert!(rows.iter().all(|row| row.starts_with(' ')), "plotting tools demand leading blanks");
        let last: Vec<&str> = rows.last().unwrap().split_whitespace().collect();
        assert_eq!(last[1..], ["1.000000000000", "1000"]);
        assert!(h.equivalent((last[0].parse::<f64>().unwrap() * MICROS) as u64, 1_000_000_000_000));
        let mean = lines[lines.len() - 3].strip_prefix("#[Mean    = ").unwrap();
        let mean: f64 = mean.split(',').next().unwrap().trim().parse().unwrap();
        assert!((mean / 1_000_499.5 - 1.0).abs() < 0.01, "{mean}");
        assert!(lines[lines.len() - 2].ends_with("Total count    =         1000]"));
        assert_eq!(lines[lines.len() - 1], "#[Buckets =           35, SubBuckets     =          256]");
    }

    #[test]
    fn only_what_was_recorded_is_written() {
        let mut set = LatencySet::new();
        set.record(Latency::Request, Duration::from_micros(10));
        set.record(Latency::Lateness, Duration::from_micros(10));
        let log_path = scratch("set.hlog");
        HistogramLog::create(&log_path, 0.0).unwrap().set(0.0, 1.0, &set).unwrap();
        let text = std::fs::read_to_string(&log_path).unwrap();
        let tags: Vec<&str> = text.lines().filter_map(|l| l.strip_prefix("Tag=")?.split(',').next()).collect();
        assert_eq!(tags, ["request", "lateness"]);
        let prefix = scratch("set");
        write_hgrm_set(&prefix, &set).unwrap();
        for (tag, there) in [("request", true), ("lateness", true), ("service", false)] {
            let path = format!("{}.{tag}.hgrm", prefix.display());
            assert_eq!(std::fs::remove_file(path).is_ok(), there, "{tag}");
        }
        std::fs::remove_file(log_path).unwrap();
    }
}
