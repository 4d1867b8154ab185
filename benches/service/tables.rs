//! Figures as tables show them, and the files that hold those tables.

use std::fs;

/// The median.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.get(sorted.len() / 2)?;
    if sorted.len() % 2 == 1 {
        Some(*middle)
    } else {
        Some(f64::midpoint(sorted[sorted.len() / 2 - 1], *middle))
    }
}

/// The least and the largest value.
pub fn extremes(values: &[f64]) -> (f64, f64) {
    values
        .iter()
        .fold((f64::MAX, f64::MIN), |(least, most), &value| {
            (least.min(value), most.max(value))
        })
}

/// The median, and the extremes where they differ.
pub fn spread(values: &[f64], digits: usize) -> String {
    let Some(median) = median(values) else {
        return "-".to_owned();
    };
    let (least, most) = extremes(values);
    if values.len() == 1 {
        format!("{median:.digits$}")
    } else {
        format!("{median:.digits$} [{least:.digits$}..{most:.digits$}]")
    }
}

/// The file with the raw figures of all benches, and the page that has the ratios of the first one.
const FIGURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/figures.txt");
const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/README.md");

/// Writes the text between the markers `<!-- name: begin -->` and `<!-- name: end -->` of
/// benches/figures.txt.
pub fn write_table(name: &str, text: &str) {
    write_between(FIGURES, name, text);
}

/// Writes the first table of a text between these markers of benches/README.md.
pub fn write_first_table(name: &str, text: &str) {
    let first = text.split("\n\n").next().unwrap_or_default();
    write_between(PAGE, name, &format!("{}\n", first.trim_end()));
}

fn write_between(path: &str, name: &str, text: &str) {
    let page = fs::read_to_string(path).expect("a file of the repository");
    let markers = ["begin", "end"].map(|which| format!("<!-- {name}: {which} -->\n"));
    let [begin, end] = [0, 1].map(|which| {
        page.find(&markers[which])
            .unwrap_or_else(|| panic!("{path} has no {}", markers[which]))
    });
    let new = format!(
        "{}{text}{}",
        &page[..begin + markers[0].len()],
        &page[end..]
    );
    fs::write(path, new).expect("a file of the repository");
}
