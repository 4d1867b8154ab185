//! Text for humans: lists and parts of texts that may be long.

/// Names, and how many more there are.
pub fn list(names: &[String], more: usize) -> String {
    let more = match more {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("{}{more}", names.join(", "))
}
