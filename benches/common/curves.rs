//! Latency against load, goodput against load, and the time after a burst, of several systems in one picture.

use std::error::Error;
use std::path::Path;

use plotters::coord::Shift;
use plotters::coord::ranged1d::ValueFormatter;
use plotters::prelude::*;

const WIDTH: u32 = 1000;
const HEAD: u32 = 66;
const PANEL: u32 = 300;
const INK: RGBColor = RGBColor(40, 40, 46);
const GRID: RGBColor = RGBColor(226, 226, 230);
const GREY: RGBColor = RGBColor(128, 128, 136);
const LIGHT: RGBColor = RGBColor(200, 200, 208);
/// Time in which too much is offered.
const PALE: RGBColor = RGBColor(250, 232, 210);
/// Of the systems, in their order.
const COLORS: [RGBColor; 4] =
    [RGBColor(38, 98, 176), RGBColor(196, 48, 52), RGBColor(24, 138, 84), RGBColor(222, 128, 22)];

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// One load. Rates are a second, times in microseconds.
pub struct Point {
    pub offered: f64,
    pub goodput: f64,
    pub p50: f64,
    pub p99: f64,
}

/// One system.
pub struct Curve {
    pub name: String,
    pub points: Vec<Point>,
    /// Seconds, and the p99 of what was meant to start then, in microseconds.
    pub bins: Vec<(f64, f64)>,
    /// From when to when too much was offered, seconds.
    pub burst: (f64, f64),
}

/// Draws them into `path`.
pub fn draw(path: &Path, title: &str, curves: &[Curve]) -> Result<(), Box<dyn Error>> {
    let root = SVGBackend::new(path, (WIDTH, HEAD + 3 * PANEL)).into_drawing_area();
    root.fill(&WHITE)?;
    let (head, panels) = root.split_vertically(HEAD);
    head.draw(&Text::new(title.to_owned(), (18, 16), ("sans-serif", 17).into_font().color(&INK)))?;
    // One legend for all panels, where no line can be.
    let mut x = 18;
    for (curve, color) in colored(curves) {
        head.draw(&PathElement::new([(x, 50), (x + 22, 50)], color.stroke_width(4)))?;
        head.draw(&Text::new(curve.name.clone(), (x + 28, 44), ("sans-serif", 13).into_font().color(&INK)))?;
        x += 60 + 7 * curve.name.len() as i32;
    }
    let panels = panels.split_evenly((3, 1));
    latency(&panels[0], curves)?;
    goodput(&panels[1], curves)?;
    after_burst(&panels[2], curves)?;
    root.present()?;
    Ok(())
}

fn colored(curves: &[Curve]) -> impl Iterator<Item = (&Curve, RGBColor)> {
    curves.iter().zip(COLORS.into_iter().cycle())
}

fn highest(values: impl Iterator<Item = f64>) -> f64 {
    values.fold(1.0, f64::max)
}

/// Powers of ten that hold all of them.
fn decades(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (least, most) = values.filter(|v| *v > 0.0).fold((f64::MAX, f64::MIN), |(a, b), v| (a.min(v), b.max(v)));
    if least > most {
        return (1.0, 10.0);
    }
    (10f64.powf(least.log10().floor()), 10f64.powf(most.log10().ceil()))
}

fn latency(area: &Area<'_>, curves: &[Curve]) -> Result<(), Box<dyn Error>> {
    let points = || curves.iter().flat_map(|c| &c.points);
    let (low, high) = decades(points().flat_map(|p| [p.p50, p.p99]));
    let right = highest(points().map(|p| p.offered)) * 1.03;
    let mut chart = frame(area).build_cartesian_2d(0.0..right, (low..high).log_scale())?;
    mesh(&mut chart, &|x| per_second(*x), &|y| micros(*y))?;
    for (curve, color) in colored(curves) {
        for (width, of) in [(3, (|p| p.p99) as fn(&Point) -> f64), (1, |p| p.p50)] {
            let line = curve.points.iter().map(|p| (p.offered, of(p)));
            chart.draw_series(LineSeries::new(line.clone(), color.stroke_width(width)))?;
            chart.draw_series(line.map(|at| Circle::new(at, 3, color.filled())))?;
        }
    }
    title(area, "latency by offered requests a second; thick: p99, thin: p50")
}

fn goodput(area: &Area<'_>, curves: &[Curve]) -> Result<(), Box<dyn Error>> {
    let points = || curves.iter().flat_map(|c| &c.points);
    let right = highest(points().map(|p| p.offered)) * 1.03;
    let top = highest(points().map(|p| p.goodput)) * 1.2;
    let mut chart = frame(area).build_cartesian_2d(0.0..right, 0.0..top)?;
    mesh(&mut chart, &|x| per_second(*x), &|y| per_second(*y))?;
    chart.draw_series(LineSeries::new([(0.0, 0.0), (top.min(right), top.min(right))], LIGHT.stroke_width(6)))?;
    for (curve, color) in colored(curves) {
        let line = curve.points.iter().map(|p| (p.offered, p.goodput));
        chart.draw_series(LineSeries::new(line.clone(), color.stroke_width(3)))?;
        chart.draw_series(line.map(|at| Circle::new(at, 3, color.filled())))?;
    }
    title(area, "replies in time a second by offered requests a second; grey: all that is offered")
}

fn after_burst(area: &Area<'_>, curves: &[Curve]) -> Result<(), Box<dyn Error>> {
    let bins = || curves.iter().flat_map(|c| &c.bins);
    let (low, high) = decades(bins().map(|(_, p99)| *p99));
    let right = highest(bins().map(|(at, _)| *at)) + 0.1;
    let mut chart = frame(area).build_cartesian_2d(0.0..right, (low..high).log_scale())?;
    mesh(&mut chart, &|x| format!("{x:.1} s"), &|y| micros(*y))?;
    if let Some(Curve { burst: (from, to), .. }) = curves.first() {
        chart.draw_series([Rectangle::new([(*from, low), (*to, high)], PALE.filled())])?;
    }
    for (curve, color) in colored(curves) {
        chart.draw_series(LineSeries::new(curve.bins.iter().copied(), color.stroke_width(3)))?;
    }
    title(area, "p99 by the time of the intended start; shaded: 300 % offered, 50 % before and after")
}

fn frame<'a, 'b>(area: &'a Area<'b>) -> ChartBuilder<'a, 'b, SVGBackend<'b>> {
    let mut builder = ChartBuilder::on(area);
    builder
        .margin_left(14)
        .margin_right(22)
        .margin_top(30)
        .margin_bottom(6)
        .x_label_area_size(28)
        .y_label_area_size(66);
    builder
}

fn mesh<X, Y>(
    chart: &mut ChartContext<'_, SVGBackend<'_>, Cartesian2d<X, Y>>,
    x: &dyn Fn(&f64) -> String,
    y: &dyn Fn(&f64) -> String,
) -> Result<(), Box<dyn Error>>
where
    X: Ranged<ValueType = f64> + ValueFormatter<f64>,
    Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(WHITE)
        .bold_line_style(GRID)
        .axis_style(GREY)
        .x_labels(11)
        .y_labels(6)
        .x_label_formatter(x)
        .y_label_formatter(y)
        .label_style(("sans-serif", 12).into_font().color(&INK))
        .draw()?;
    Ok(())
}

fn title(area: &Area<'_>, what: &str) -> Result<(), Box<dyn Error>> {
    area.draw(&Text::new(what.to_owned(), (18, 10), ("sans-serif", 13).into_font().color(&INK)))?;
    Ok(())
}

fn per_second(value: f64) -> String {
    match value {
        v if v >= 1e6 => format!("{:.1} M/s", v / 1e6),
        v if v >= 1e3 => format!("{:.0} k/s", v / 1e3),
        v => format!("{v:.0}/s"),
    }
}

fn micros(value: f64) -> String {
    match value {
        v if v >= 1e6 => format!("{:.0} s", v / 1e6),
        v if v >= 1e3 => format!("{:.0} ms", v / 1e3),
        v => format!("{v:.0} us"),
    }
}
