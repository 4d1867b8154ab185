//! Figures as tables show them, where they were measured, and their place in the README.

use std::fs;
use std::process::Command;

use super::servers::cores;

/// The middle one.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied()
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

/// The first line that a program says of its version.
pub fn version(program: &str) -> String {
    let output = Command::new(program).arg("--version").output().map(|output| output.stdout).unwrap_or_default();
    String::from_utf8_lossy(&output).lines().next().unwrap_or(program).to_owned()
}

/// How many processors of which kind.
pub fn processors() -> String {
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": ")).map_or("unknown", |(_, model)| model);
    format!("{} × {model}", cores())
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
