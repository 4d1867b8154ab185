//! The plots and the table of config/algorithms.md are those that the algorithms draw now.

#[path = "../../../benches/plots.rs"]
mod drawn;

use weir::core::algorithm::AlgorithmKind;

use crate::support::tools;

#[test]
fn the_plots_are_those_of_the_algorithms() {
    for (name, kind) in AlgorithmKind::OVER_TIME {
        let kept = tools::file(&format!("benches/plots/{name}.svg"));
        assert!(
            kept == drawn::picture(name, kind),
            "{name}.svg is an old one; run `cargo bench --bench plots`"
        );
        assert!(
            tools::file("config/algorithms.md").contains(&format!("benches/plots/{name}.svg")),
            "config/algorithms.md does not show {name}"
        );
    }
}

#[test]
fn the_accuracy_of_the_counter_is_what_the_page_says() {
    let table = drawn::distance();
    assert!(
        tools::file("config/algorithms.md").contains(table.trim()),
        "run `cargo bench --bench plots`, and put its table into config/algorithms.md:\n{table}"
    );
}
