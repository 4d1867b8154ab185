//! What pages show of `weir size` is all that it prints.
//!
//! `WEIR_WRITE=1 cargo test --test it -- docs::sizes` writes it anew, after a measurement has
//! changed a figure.

use std::fmt::Write;
use std::fs;

use super::{console, pages, shell};
use crate::support::tools;

#[test]
fn every_size_is_that_of_the_command() {
    let mut found = 0;
    for page in pages() {
        let text = tools::file(&page);
        let mut new = text.clone();
        for shown in console(&text)
            .iter()
            .filter(|shown| shown.command.starts_with("weir size "))
        {
            found += 1;
            let real = shell(
                &shown
                    .command
                    .replacen("weir", env!("CARGO_BIN_EXE_weir"), 1),
            );
            assert!(
                real.lines().count() > 10,
                "`{}` prints {real:?}",
                shown.command
            );
            let block = |lines: &mut dyn Iterator<Item = &str>| {
                lines.fold(format!("$ {}\n", shown.command), |mut block, line| {
                    let _ = writeln!(block, "{line}");
                    block
                })
            };
            let [old, printed] = [
                block(&mut shown.output.iter().map(String::as_str)),
                block(&mut real.lines()),
            ];
            new = new.replacen(&old, &printed, 1);
        }
        if new != text {
            assert!(
                std::env::var_os("WEIR_WRITE").is_some(),
                "{page} shows other sizes; run `WEIR_WRITE=1 cargo test --test it -- docs::sizes`"
            );
            fs::write(tools::repository().join(&page), new).expect("writable");
        }
    }
    assert!(found >= 4, "{found} sizes are shown");
}
