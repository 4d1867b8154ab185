//! Figures as tables show them, and the page that holds those tables.

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

/// The page that holds the tables of all benches.
const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/README.md");

/// Writes the text between the markers `<!-- name: begin -->` and `<!-- name: end -->` of
/// benches/README.md.
pub fn write_table(name: &str, text: &str) {
    let page = fs::read_to_string(PAGE).expect("benches/README.md");
    let markers = ["begin", "end"].map(|which| format!("<!-- {name}: {which} -->\n"));
    let [begin, end] = [0, 1].map(|which| {
        page.find(&markers[which])
            .unwrap_or_else(|| panic!("benches/README.md has no {}", markers[which]))
    });
    let new = format!(
        "{}{text}{}",
        &page[..begin + markers[0].len()],
        &page[end..]
    );
    fs::write(PAGE, new).expect("benches/README.md");
}
