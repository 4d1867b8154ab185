//! The report as one file of HTML: no scripts, nothing from elsewhere, dark and light, printable.
//!
//! All texts of a trace are hostile. They are escaped where they are written, and a policy forbids
//! all scripts in addition.

use std::fmt::Write;

use super::result::{ReplayReport, ReportPart, Table};
use super::tally::TimeSeries;
use crate::core::time::{Micros, people};
use crate::limits::rules::compile::OneLine;

/// Maximum number of points of a line.
const PARTS: u64 = 600;

/// The size of a picture, and the room for its numbers.
const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 220.0;
const LEFT: f64 = 60.0;
const BOTTOM: f64 = 24.0;
const TOP: f64 = 10.0;

/// Seconds between ticks of the time, which are multiples of them; beyond these, whole days.
const TICKS: [u64; 16] = [
    1, 2, 5, 10, 30, 60, 120, 300, 600, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200, DAY,
];
const DAY: u64 = 86_400;
const MAX_TICKS: u64 = 8;

/// Maximum number of lines of a chart of limits.
const MAX_LIMITS: usize = 5;

const HEAD: &str = "<!doctype html>
<html lang=\"en\">
<head>
<meta charset=\"utf-8\">
<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; \
    style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'\">
<meta name=\"viewport\" content=\"width=device-width\">
<title>weir replay</title>
<style>
";

const STYLE: &str = include_str!("report.css");

/// A picture of rates over time, with a name for each line.
struct Chart<'a> {
    title: String,
    lines: Vec<(String, &'a TimeSeries)>,
}

pub(super) fn page(report: &ReplayReport) -> String {
    let mut page = format!("{HEAD}{STYLE}</style>\n</head>\n<body>\n<h1>weir replay</h1>\n");
    for (index, part) in report.parts().iter().enumerate() {
        page += &part_html(part);
        if index == 0 {
            let charts = charts(report);
            let axis = Axis::new(report.offered.begin(), &charts);
            page.extend(charts.iter().map(|chart| chart.html(&axis)));
        }
    }
    page + "</body>\n</html>\n"
}

/// The difference first, for which two configurations are given.
fn charts(report: &ReplayReport) -> Vec<Chart<'_>> {
    let difference = report.difference.iter().map(|all| {
        let admitted = ("newly admitted".to_owned(), &all.newly_admitted.over_time);
        let refused = ("newly refused".to_owned(), &all.newly_refused.over_time);
        let title = "Newly refused requests a second".to_owned();
        let lines = vec![admitted, refused];
        Chart { title, lines }
    });
    let mut charts: Vec<_> = difference.collect();
    let mut lines = vec![("offered".to_owned(), &report.offered)];
    let admitted = report.configurations.iter();
    lines.extend(admitted.map(|one| (format!("admitted by {}", one.config), &one.admitted)));
    let title = "Requests a second".to_owned();
    charts.push(Chart { title, lines });
    for outcome in &report.configurations {
        let refusing = outcome.limits.iter().filter(|one| one.tally.refused > 0);
        let lines = refusing.map(|one| (one.limit.clone(), &one.tally.refusals));
        let lines: Vec<_> = lines.take(MAX_LIMITS).collect();
        let title = format!("Refusals a second by limit, {}", outcome.config);
        charts.extend((!lines.is_empty()).then_some(Chart { title, lines }));
    }
    charts
}

fn part_html(part: &ReportPart) -> String {
    let table = match part {
        ReportPart::Title(text) => return format!("<h2>{}</h2>\n", escaped(text)),
        ReportPart::Line(text) => return format!("<p>{}</p>\n", escaped(text)),
        ReportPart::Table(Table { rows, .. }) if rows.is_empty() => return String::new(),
        ReportPart::Table(table) => table,
    };
    let row = |tag: &str, cells: &mut dyn Iterator<Item = &str>| {
        let cell = |(column, text): (usize, &str)| {
            let class = Some(" class=\"number\"").filter(|_| column < table.numbers);
            let class = class.unwrap_or_default();
            format!("<{tag}{class}>{}</{tag}>", escaped(text))
        };
        let cells: String = cells.enumerate().map(cell).collect();
        format!("<tr>{cells}</tr>\n")
    };
    let title = escaped(&table.title);
    let mut html = format!("<div class=\"table\"><table>\n<caption>{title}</caption>\n");
    if !table.heads.is_empty() {
        html += &row("th", &mut table.heads.iter().copied());
    }
    for cells in &table.rows {
        html += &row("td", &mut cells.iter().map(String::as_str));
    }
    html + "</table></div>\n"
}

/// The time that all pictures share, in seconds.
struct Axis {
    begin: u64,
    /// The parts of it, and the width of one.
    parts: usize,
    width: u64,
}

impl Axis {
    fn new(begin: u64, charts: &[Chart<'_>]) -> Self {
        let lines = || charts.iter().flat_map(|chart| &chart.lines);
        let end = lines().filter_map(|(_, series)| series.end()).max();
        let seconds = end.unwrap_or(begin).saturating_sub(begin).max(1);
        // As wide as the widest of the series, whose numbers cannot be divided.
        let widest = lines().map(|(_, series)| series.width()).max().unwrap_or(1);
        let width = widest.max(seconds.div_ceil(PARTS).next_power_of_two());
        Self {
            begin,
            parts: seconds.div_ceil(width) as usize,
            width,
        }
    }

    /// Round instants in it, each with its share and text.
    fn ticks(&self) -> Vec<(f64, String)> {
        let seconds = self.parts as u64 * self.width;
        let step = TICKS.into_iter().find(|step| seconds / step <= MAX_TICKS);
        let step = step.unwrap_or_else(|| seconds.div_ceil(MAX_TICKS).next_multiple_of(DAY));
        let format = match step {
            ..60 => "%H:%M:%S",
            DAY.. => "%m-%d",
            _ if seconds > DAY => "%m-%d %H:%M",
            _ => "%H:%M",
        };
        let first = self.begin.next_multiple_of(step);
        let tick = |at: u64| {
            let text = people::timestamp(Micros(at * 1_000_000)).strftime(format);
            let share = (at - self.begin) as f64 / seconds as f64;
            (share, text.to_string())
        };
        let all = (first..=self.begin + seconds).step_by(step as usize);
        all.map(tick).collect()
    }
}

impl Chart<'_> {
    fn html(&self, axis: &Axis) -> String {
        let rates =
            |(_, series): &(_, &TimeSeries)| series.rates(axis.begin, axis.width, axis.parts);
        let all: Vec<_> = self.lines.iter().map(rates).collect();
        let most = rounded_up(all.iter().flatten().copied().fold(0.0, f64::max));
        let title = escaped(&self.title);
        let mut svg = format!(
            "<figure><figcaption>{title}</figcaption>\n<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
             role=\"img\" aria-label=\"{title}\">\n"
        );
        svg += &axes(axis, most);
        let mut names = String::new();
        for (index, (rates, (name, _))) in all.iter().zip(&self.lines).enumerate() {
            let mut points = String::new();
            for (part, rate) in rates.iter().enumerate() {
                let [from, to] = [part, part + 1].map(|part| x(part as f64 / axis.parts as f64));
                let at = y(rate / most);
                // Writing to a string does not fail.
                let _ = write!(points, "{from:.1},{at:.1} {to:.1},{at:.1} ");
            }
            let points = points.trim_end();
            svg += &format!("<polyline class=\"line{index}\" points=\"{points}\"/>\n");
            names += &format!("<li class=\"line{index}\">{}</li>", escaped(name));
        }
        format!("{svg}</svg>\n<ul>{names}</ul></figure>\n")
    }
}

/// Three lines with numbers a second, and one for each tick of the time.
fn axes(axis: &Axis, most: f64) -> String {
    let mut svg = String::new();
    for share in [0.0, 0.5, 1.0] {
        let (at, right, number) = (y(share), WIDTH - 10.0, most * share);
        svg += &format!(
            "<line x1=\"{LEFT}\" x2=\"{right}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/><text x=\"{:.1}\" \
             y=\"{:.1}\" class=\"end\">{number}</text>\n",
            LEFT - 6.0,
            at + 4.0
        );
    }
    for (share, text) in axis.ticks() {
        let (at, top, bottom) = (x(share), y(1.0), y(0.0));
        let class = match share {
            ..0.05 => "begin",
            0.95.. => "end",
            _ => "middle",
        };
        svg += &format!(
            "<line x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{top}\" y2=\"{bottom}\"/><text x=\"{at:.1}\" \
             y=\"{}\" class=\"{class}\">{text}</text>\n",
            HEIGHT - 6.0
        );
    }
    svg
}

fn x(share: f64) -> f64 {
    LEFT + share * (WIDTH - LEFT - 10.0)
}

fn y(share: f64) -> f64 {
    HEIGHT - BOTTOM - share * (HEIGHT - BOTTOM - TOP)
}

/// The next number of one digit, or of 1.2, 1.6 or 2.4 and so on.
fn rounded_up(most: f64) -> f64 {
    let power = 10_f64.powf(most.max(1e-3).log10().floor());
    let steps = [1.0, 1.2, 1.6, 2.0, 2.4, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0];
    let step = steps.into_iter().find(|step| step * power >= most);
    let exact = step.unwrap_or(10.0) * power;
    // Without the error of the power.
    format!("{exact:.4}").parse().unwrap_or(exact)
}

/// A text in HTML and in attributes. Control characters are shown as escapes.
fn escaped(text: &str) -> String {
    let text = OneLine(text).to_string().replace('&', "&amp;");
    let text = text.replace('<', "&lt;").replace('>', "&gt;");
    text.replace('"', "&quot;").replace('\'', "&#39;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_escaped() {
        let text = "<a href='x' \"&\u{202e}\u{0}";
        assert_eq!(
            escaped(text),
            "&lt;a href=&#39;x&#39; &quot;&amp;\\u{202e}\\0"
        );
    }

    #[test]
    fn ticks_are_round() {
        for (begin, width, parts, ticks) in [
            (
                1_795_428_001,
                1,
                52,
                &["10:00:10", "10:00:20", "10:00:30", "10:00:40", "10:00:50"][..],
            ),
            (
                1_795_428_000,
                1,
                3,
                &["10:00:00", "10:00:01", "10:00:02", "10:00:03"],
            ),
            (
                1_795_428_001,
                8,
                450,
                &["10:10", "10:20", "10:30", "10:40", "10:50", "11:00"],
            ),
            (
                1_795_428_001,
                256,
                506,
                &[
                    "11-23 12:00",
                    "11-23 18:00",
                    "11-24 00:00",
                    "11-24 06:00",
                    "11-24 12:00",
                    "11-24 18:00",
                ],
            ),
            (
                1_795_428_001,
                65_536,
                60,
                &[
                    "11-27", "12-03", "12-09", "12-15", "12-21", "12-27", "01-02",
                ],
            ),
        ] {
            let axis = Axis {
                begin,
                parts,
                width,
            };
            let texts: Vec<_> = axis.ticks().into_iter().map(|(_, text)| text).collect();
            assert_eq!(texts, ticks);
        }
    }

    #[test]
    fn axes_end_with_a_short_number() {
        for (most, number) in [
            (0.0, 0.001),
            (0.7, 0.8),
            (1.0, 1.0),
            (41.0, 50.0),
            (1_201.0, 1_600.0),
            (99_999.0, 100_000.0),
        ] {
            assert!((rounded_up(most) - number).abs() < 1e-9, "{most}");
        }
    }
}
