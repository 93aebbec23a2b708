//! The chart of a run: what was offered and what was committed, who waited, how long it took and what it
//! occupied, over the same time, so that a cause and its effect stand above each other.

use std::error::Error;
use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;

use crate::sample::Sample;

const WIDTH: u32 = 1000;
const HEAD: u32 = 46;
const PANEL: u32 = 236;
const INK: RGBColor = RGBColor(40, 40, 46);
const GRID: RGBColor = RGBColor(226, 226, 230);
const BLUE: RGBColor = RGBColor(38, 98, 176);
const GREEN: RGBColor = RGBColor(24, 138, 84);
const ORANGE: RGBColor = RGBColor(222, 128, 22);
const RED: RGBColor = RGBColor(196, 48, 52);
const LIGHT: RGBColor = RGBColor(200, 200, 208);
const GREY: RGBColor = RGBColor(128, 128, 136);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// One line of a panel.
struct Line<'a> {
    name: &'a str,
    color: RGBColor,
    width: u32,
    /// `None`: there was nothing to measure, and the line has a gap.
    of: fn(&Sample) -> Option<f64>,
}

/// Draws the samples into `path`; `title` says what kind of run it was. A sample is what was so on average
/// from its beginning to its end, so a line is made of levels and not of slopes.
pub fn draw(path: &Path, title: &str, samples: &[Sample]) -> Result<(), Box<dyn Error>> {
    let end = samples.last().map_or(1.0, |sample| sample.at).max(0.1);
    let root = SVGBackend::new(path, (WIDTH, HEAD + 4 * PANEL)).into_drawing_area();
    root.fill(&WHITE)?;
    let (head, panels) = root.split_vertically(HEAD);
    head.draw(&Text::new(title.to_owned(), (18, 16), ("sans-serif", 17).into_font().color(&INK)))?;
    let lines: [(&str, &[Line<'_>]); 4] = [
        (
            "per second",
            &[
                Line { name: "offered", color: LIGHT, width: 7, of: |s| per_second(s.offered, s) },
                Line { name: "submitted", color: ORANGE, width: 2, of: |s| per_second(s.submitted, s) },
                Line { name: "committed", color: GREEN, width: 2, of: |s| per_second(s.commits, s) },
            ],
        ),
        (
            "waits per second",
            &[
                Line {
                    name: "operations without room at once",
                    color: ORANGE,
                    width: 2,
                    of: |s| per_second(s.blocked, s),
                },
                Line {
                    name: "origins without a permit at once",
                    color: BLUE,
                    width: 2,
                    of: |s| per_second(s.permit_waits, s),
                },
            ],
        ),
        (
            "latency, ms",
            &[
                Line { name: "p99", color: RED, width: 2, of: |s| (s.replies > 0).then_some(s.p99) },
                Line { name: "p50", color: BLUE, width: 2, of: |s| (s.replies > 0).then_some(s.p50) },
            ],
        ),
        (
            "memory, MiB",
            &[
                Line { name: "resident", color: GREY, width: 2, of: |s| mib(s.resident) },
                Line { name: "allocated", color: GREEN, width: 2, of: |s| mib(s.allocated) },
            ],
        ),
    ];
    for (area, (what, lines)) in panels.split_evenly((4, 1)).iter().zip(lines) {
        panel(area, what, lines, samples, end)?;
    }
    root.present()?;
    Ok(())
}

fn per_second(n: u64, sample: &Sample) -> Option<f64> {
    Some(n as f64 / sample.length.max(1e-9))
}

fn mib(bytes: u64) -> Option<f64> {
    Some(bytes as f64 / f64::from(1 << 20))
}

fn panel(area: &Area<'_>, what: &str, lines: &[Line<'_>], samples: &[Sample], end: f64) -> Result<(), Box<dyn Error>> {
    let highest = lines.iter().flat_map(|line| samples.iter().filter_map(line.of)).fold(0.0, f64::max);
    let top = if highest > 0.0 { highest * 1.08 } else { 1.0 };
    let mut chart = ChartBuilder::on(area)
        .margin_left(14)
        .margin_right(22)
        .margin_top(26)
        .margin_bottom(4)
        .x_label_area_size(26)
        .y_label_area_size(66)
        .build_cartesian_2d(0.0..end, 0.0..top)?;
    let text = ("sans-serif", 12).into_font().color(&INK);
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(WHITE)
        .bold_line_style(GRID)
        .axis_style(GREY)
        .x_labels(11)
        .y_labels(5)
        .x_label_formatter(&|at| format!("{at:.0} s"))
        .y_label_formatter(&|value| short(*value))
        .label_style(text)
        .draw()?;
    // Time in which peers were told to pause lies behind the lines.
    let paused = samples.iter().filter(|s| s.paused > 0.0 && s.length > 0.0).map(|s| {
        let depth = 0.06 + 0.14 * (s.paused / s.length).clamp(0.0, 1.0);
        Rectangle::new([((s.at - s.length).max(0.0), 0.0), (s.at, top)], ORANGE.mix(depth).filled())
    });
    chart.draw_series(paused)?;
    for line in lines {
        for run in samples.chunk_by(|a, b| (line.of)(a).is_some() == (line.of)(b).is_some()) {
            let level = |s: &Sample| (line.of)(s).map(|value| [(s.at - s.length).max(0.0), s.at].map(|at| (at, value)));
            let points = run.iter().filter_map(level).flatten();
            chart.draw_series(LineSeries::new(points, line.color.stroke_width(line.width)))?;
        }
    }
    area.draw(&Text::new(what.to_owned(), (18, 8), ("sans-serif", 13).into_font().color(&INK)))?;
    // The legend stands above the plot, where no line can be.
    let mut x = 190;
    for line in lines {
        area.draw(&PathElement::new([(x, 14), (x + 22, 14)], line.color.stroke_width(line.width + 1)))?;
        area.draw(&Text::new(line.name.to_owned(), (x + 28, 8), ("sans-serif", 13).into_font().color(&INK)))?;
        x += 48 + 7 * line.name.len() as i32;
    }
    if samples.iter().any(|s| s.paused > 0.0) {
        area.draw(&Rectangle::new([(x, 8), (x + 22, 20)], ORANGE.mix(0.2).filled()))?;
        area.draw(&Text::new("peers paused", (x + 28, 8), ("sans-serif", 13).into_font().color(&INK)))?;
    }
    Ok(())
}

/// A number as short as an axis can have it.
fn short(value: f64) -> String {
    match value {
        v if v >= 1e6 => format!("{:.1} M", v / 1e6),
        v if v >= 1e4 => format!("{:.0} k", v / 1e3),
        v if v >= 1e3 => format!("{:.1} k", v / 1e3),
        v if v >= 10.0 || v.fract() == 0.0 => format!("{v:.0}"),
        v => format!("{v:.1}"),
    }
}
