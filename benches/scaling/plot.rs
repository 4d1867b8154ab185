//! The plot of all dimensions: one small chart for each, side by side.

use std::fmt::Write;

use super::dimensions::{Measured, Readings, grouped};
use crate::service::tables::{extremes, median};

const COLUMNS: usize = 4;
const WIDTH: f64 = 230.0;
const HEIGHT: f64 = 170.0;
const LEFT: f64 = 34.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 26.0;

/// The least value of the upper edge, so that a constant cost looks flat.
const LEAST_TOP: f64 = 2.0;

/// Writes `benches/plots/scaling.svg`.
pub fn write(rows: &[Measured]) {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/plots/scaling.svg");
    std::fs::write(path, picture(rows)).expect("the folder is writable");
}

fn picture(rows: &[Measured]) -> String {
    let (width, height) = (
        WIDTH * COLUMNS as f64,
        HEIGHT * rows.len().div_ceil(COLUMNS) as f64 + 20.0,
    );
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"10\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
         <text x=\"10\" y=\"15\">CPU of a request as a ratio to the first point of its row; bars: \
         least and most of the rounds</text>\n"
    );
    for (index, row) in rows.iter().enumerate() {
        let (x, y) = (
            (index % COLUMNS) as f64 * WIDTH,
            (index / COLUMNS) as f64 * HEIGHT + 20.0,
        );
        let _ = writeln!(svg, "<g transform=\"translate({x} {y})\">");
        panel(&mut svg, row);
        svg += "</g>\n";
    }
    svg + "</svg>\n"
}

fn panel(svg: &mut String, row: &Measured) {
    let most = row
        .points
        .iter()
        .map(|point| extremes(&point.cpu).1)
        .fold(LEAST_TOP, f64::max);
    let step = if most > 2.0 * LEAST_TOP {
        (most / 4.0).ceil()
    } else {
        0.5
    };
    let top = (most / step).ceil() * step;
    let gaps = row.points.len().saturating_sub(1).max(1) as f64;
    let x = |index: usize| LEFT + 8.0 + index as f64 * (WIDTH - LEFT - RIGHT - 16.0) / gaps;
    let y = |ratio: f64| HEIGHT - BOTTOM - ratio / top * (HEIGHT - BOTTOM - TOP);
    let _ = writeln!(
        svg,
        "<text x=\"{LEFT}\" y=\"20\" font-weight=\"bold\" font-size=\"11\">{}</text>",
        row.name
    );
    for line in 0..=(top / step).round() as usize {
        let ratio = line as f64 * step;
        let (at, right, label, middle) = (y(ratio), WIDTH - RIGHT, LEFT - 4.0, y(ratio) + 3.5);
        let colour = if (ratio - 1.0).abs() < 0.01 {
            "#999"
        } else {
            "#ddd"
        };
        let _ = writeln!(
            svg,
            "<line x1=\"{LEFT}\" x2=\"{right}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"{colour}\"/>\
             <text x=\"{label}\" y=\"{middle:.1}\" text-anchor=\"end\">{ratio}</text>"
        );
    }
    let of = |point: &Readings| median(&point.cpu).unwrap_or(0.0);
    let line: Vec<String> = row
        .points
        .iter()
        .enumerate()
        .map(|(index, point)| format!("{:.1},{:.1}", x(index), y(of(point))))
        .collect();
    let _ = writeln!(
        svg,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"#06c\" stroke-width=\"1.5\"/>",
        line.join(" ")
    );
    for (index, point) in row.points.iter().enumerate() {
        let (least, most) = extremes(&point.cpu);
        let (at, low, high, middle, number) = (
            x(index),
            y(least),
            y(most),
            y(of(point)),
            short(point.number),
        );
        let _ = writeln!(
            svg,
            "<line x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{low:.1}\" y2=\"{high:.1}\" stroke=\"#06c\"/>\
             <circle cx=\"{at:.1}\" cy=\"{middle:.1}\" r=\"2.5\" fill=\"#06c\"/>\
             <text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{number}</text>",
            HEIGHT - BOTTOM + 14.0
        );
    }
}

/// 10k, 1M.
fn short(number: u32) -> String {
    match number {
        1_000_000.. if number.is_multiple_of(1_000_000) => format!("{}M", number / 1_000_000),
        1_000.. if number.is_multiple_of(1_000) => format!("{}k", number / 1_000),
        _ => grouped(number),
    }
}
