//! The report as one file of HTML: no scripts, nothing from elsewhere, dark and light, printable.
//!
//! All texts of a trace are hostile. They are escaped where they are written, and a policy forbids
//! every script besides.

use std::fmt::Write;

use super::result::{Part, Report};
use super::tally::Series;
use crate::core::time::{Micros, people};
use crate::limits::rules::compile::OneLine;

/// Points of a line at most.
const PARTS: u64 = 600;

/// The size of a picture, and the room for its numbers.
const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 220.0;
const LEFT: f64 = 60.0;
const BOTTOM: f64 = 24.0;
const TOP: f64 = 10.0;

/// Lines of a picture of limits at most.
const MAX_LIMITS: usize = 5;

const HEAD: &str = "<!doctype html>
<html lang=\"en\">
<head>
<meta charset=\"utf-8\">
<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'\">
<meta name=\"viewport\" content=\"width=device-width\">
<title>weir replay</title>
<style>
";

const STYLE: &str = include_str!("report.css");

/// A picture of rates over time, with a name for each line.
struct Chart<'a> {
    title: String,
    lines: Vec<(String, &'a Series)>,
}

/// The page of a report.
pub(super) fn page(report: &Report) -> String {
    let mut page = format!("{HEAD}{STYLE}</style>\n</head>\n<body>\n<h1>weir replay</h1>\n");
    for (index, part) in report.parts().iter().enumerate() {
        page += &part_html(part);
        if index == 0 {
            let charts = charts(report).into_iter();
            page.extend(charts.map(|chart| chart.html(report.offered.begin())));
        }
    }
    page + "</body>\n</html>\n"
}

fn charts(report: &Report) -> Vec<Chart<'_>> {
    let mut lines = vec![("offered".to_owned(), &report.offered)];
    let admitted = report.configurations.iter();
    lines.extend(admitted.map(|one| (format!("admitted by {}", one.config), &one.admitted)));
    let title = "Requests a second".to_owned();
    let mut charts = vec![Chart { title, lines }];
    for outcome in &report.configurations {
        let refusing = outcome
            .limits
            .iter()
            .filter(|limit| limit.tally.refused > 0);
        let lines: Vec<_> = refusing
            .take(MAX_LIMITS)
            .map(|limit| (limit.limit.clone(), &limit.tally.refusals))
            .collect();
        let title = format!("Refusals a second by limit, {}", outcome.config);
        charts.extend((!lines.is_empty()).then_some(Chart { title, lines }));
    }
    charts
}

fn part_html(part: &Part) -> String {
    let (title, heads, rows, numbers) = match part {
        Part::Title(text) => return format!("<h2>{}</h2>\n", escaped(text)),
        Part::Line(text) => return format!("<p>{}</p>\n", escaped(text)),
        Part::Table { rows, .. } if rows.is_empty() => return String::new(),
        Part::Table {
            title,
            heads,
            rows,
            numbers,
        } => (title, heads, rows, *numbers),
    };
    let row = |tag: &str, cells: &mut dyn Iterator<Item = &str>| {
        let cell = |(column, text): (usize, &str)| {
            let class = if column < numbers {
                " class=\"number\""
            } else {
                ""
            };
            format!("<{tag}{class}>{}</{tag}>", escaped(text))
        };
        format!(
            "<tr>{}</tr>\n",
            cells.enumerate().map(cell).collect::<String>()
        )
    };
    let mut html = format!(
        "<div class=\"table\"><table>\n<caption>{}</caption>\n",
        escaped(title)
    );
    if !heads.is_empty() {
        html += &row("th", &mut heads.iter().copied());
    }
    for cells in rows {
        html += &row("td", &mut cells.iter().map(String::as_str));
    }
    html + "</table></div>\n"
}

impl Chart<'_> {
    /// The picture of the time from `begin` on, in seconds.
    fn html(&self, begin: u64) -> String {
        let series = || self.lines.iter().map(|(_, series)| *series);
        let ends = series().filter_map(Series::end).max();
        let seconds = ends.unwrap_or(begin).saturating_sub(begin).max(1);
        // As wide as the widest of the series, whose numbers cannot be divided.
        let widest = series().map(Series::width).max().unwrap_or(1);
        let width = widest.max(seconds.div_ceil(PARTS).next_power_of_two());
        let parts = seconds.div_ceil(width) as usize;
        let all: Vec<_> = series()
            .map(|series| series.rates(begin, width, parts))
            .collect();
        let most = rounded_up(all.iter().flatten().copied().fold(0.0, f64::max));
        let mut svg = format!(
            "<figure><figcaption>{0}</figcaption>\n<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{0}\">\n",
            escaped(&self.title)
        );
        svg += &axes(begin, seconds, most);
        let mut names = String::new();
        for (index, (rates, (name, _))) in all.iter().zip(&self.lines).enumerate() {
            let mut points = String::new();
            for (part, rate) in rates.iter().enumerate() {
                let [from, to] = [part, part + 1].map(|part| x(part as f64 / parts as f64));
                let at = y(rate / most);
                // Writing to a string does not fail.
                let _ = write!(points, "{from:.1},{at:.1} {to:.1},{at:.1} ");
            }
            svg += &format!(
                "<polyline class=\"line{index}\" points=\"{}\"/>\n",
                points.trim_end()
            );
            names += &format!("<li class=\"line{index}\">{}</li>", escaped(name));
        }
        format!("{svg}</svg>\n<ul>{names}</ul></figure>\n")
    }
}

/// Three lines with numbers a second, and five times.
fn axes(begin: u64, seconds: u64, most: f64) -> String {
    let mut svg = String::new();
    for share in [0.0, 0.5, 1.0] {
        let (at, right, number) = (y(share), WIDTH - 10.0, most * share);
        svg += &format!(
            "<line x1=\"{LEFT}\" x2=\"{right}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/><text x=\"{:.1}\" y=\"{:.1}\" class=\"end\">{number}</text>\n",
            LEFT - 6.0,
            at + 4.0
        );
    }
    for (share, class) in [
        (0.0, "begin"),
        (0.25, "middle"),
        (0.5, "middle"),
        (0.75, "middle"),
        (1.0, "end"),
    ] {
        let micros = (begin as f64 + share * seconds as f64) * 1e6;
        let at = people::timestamp(Micros(micros as u64));
        let text = at.strftime(if seconds > 2 * 86_400 {
            "%m-%d %H:%M"
        } else {
            "%H:%M:%S"
        });
        svg += &format!(
            "<text x=\"{:.1}\" y=\"{}\" class=\"{class}\">{text}</text>\n",
            x(share),
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
    let mut out = String::with_capacity(text.len());
    for letter in OneLine(text).to_string().chars() {
        match letter {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            '\'' => out += "&#39;",
            _ => out.push(letter),
        }
    }
    out
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
