//! The pictures and the table of the README are those that the algorithms draw now.

#[path = "../../benches/plots.rs"]
mod drawn;

use weir::algorithm::AlgorithmKind;

use crate::support::tools;

#[test]
fn the_pictures_are_those_of_the_algorithms() {
    for (name, kind) in AlgorithmKind::NAMED {
        let kept = tools::file(&format!("benches/plots/{name}.svg"));
        assert!(kept == drawn::picture(name, kind), "{name}.svg is an old one; run `cargo bench --bench plots`");
        assert!(tools::file("README.md").contains(&format!("benches/plots/{name}.svg")), "the README does not show {name}");
    }
}

#[test]
fn the_distance_of_the_counter_is_what_the_readme_says() {
    let table = drawn::distance();
    assert!(
        tools::file("README.md").contains(table.trim()),
        "run `cargo bench --bench plots`, and put its table into the README:\n{table}"
    );
}
