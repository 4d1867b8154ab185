//! Text for humans: lists and parts of texts that may be long.

/// Names, and how many more there are.
pub fn list(names: &[String], more: usize) -> String {
    let more = match more {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("{}{more}", names.join(", "))
}

/// The first names, at most `most`, and how many more there are.
pub fn first_names(names: &[String], most: usize) -> String {
    let (first, more) = names.split_at(names.len().min(most));
    list(first, more.len())
}

/// The name of a value in a table of names.
pub fn name_of<T: PartialEq>(named: &[(&'static str, T)], value: &T) -> Option<&'static str> {
    let found = named.iter().find(|(_, one)| one == value);
    found.map(|(name, _)| *name)
}

/// The first number after the name that a line begins with, as in the files of `/proc`.
pub fn number_after(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_ascii_whitespace().next()?.parse().ok()
}

/// Mark at the end of a text that was cut.
pub const MARK: &str = "…";

/// The first `longest` bytes of a text, or fewer, that end with a whole character.
pub fn cut(text: &[u8], longest: usize) -> &[u8] {
    if text.len() <= longest {
        return text;
    }
    // A character has at most four bytes; bytes that are no characters are cut anywhere.
    let is_inside = |at: usize| text[at] & 0xc0 == 0x80;
    let mut ends = (longest.saturating_sub(3)..=longest).rev();
    let end = ends.find(|&at| !is_inside(at));
    &text[..end.unwrap_or(longest)]
}
