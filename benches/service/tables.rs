//! Figures as tables show them, and their place in the README.

use std::fs;

/// The middle one, or what is between the middle two.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.get(sorted.len() / 2)?;
    if sorted.len() % 2 == 1 { Some(*middle) } else { Some(f64::midpoint(sorted[sorted.len() / 2 - 1], *middle)) }
}

/// The least and the most.
pub fn extremes(values: &[f64]) -> (f64, f64) {
    values.iter().fold((f64::MAX, f64::MIN), |(least, most), &value| (least.min(value), most.max(value)))
}

/// The median, and the extremes where they differ.
pub fn spread(values: &[f64], digits: usize) -> String {
    let Some(median) = median(values) else { return "-".to_owned() };
    let (least, most) = extremes(values);
    if values.len() == 1 { format!("{median:.digits$}") } else { format!("{median:.digits$} [{least:.digits$}..{most:.digits$}]") }
}

/// Puts the text between the markers of this name in the README.
pub fn into_the_readme(name: &str, text: &str) {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/README.md");
    let readme = fs::read_to_string(path).expect("the README");
    let markers = ["begin", "end"].map(|which| format!("<!-- {name}: {which} -->\n"));
    let [begin, end] = [0, 1].map(|which| readme.find(&markers[which]).unwrap_or_else(|| panic!("the README has no {}", markers[which])));
    let new = format!("{}{text}{}", &readme[..begin + markers[0].len()], &readme[end..]);
    fs::write(path, new).expect("the README");
}
