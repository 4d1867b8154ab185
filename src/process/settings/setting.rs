//! A field of the flags as a setting: the name of its variable, which is the field's name in
//! capitals, and its value; and the warning about settings without effect.

use std::path::PathBuf;
use std::time::Duration;

/// The variable of a field of flags, and a reference to its value.
macro_rules! setting {
    ($flags:ident.$field:ident) => {{
        const FIELD: &str = stringify!($field);
        const VARIABLE: [u8; FIELD.len()] = $crate::process::settings::setting::in_capitals(FIELD);
        (
            str::from_utf8(&VARIABLE).unwrap_or_default(),
            &$flags.$field,
        )
    }};
}
pub(super) use setting;

/// The name of a field in capitals; `N` is its length.
pub(super) const fn in_capitals<const N: usize>(field: &str) -> [u8; N] {
    let mut variable = *field.as_bytes().first_chunk().expect("the length of it");
    variable.make_ascii_uppercase();
    variable
}

/// The value of a setting, which may be unset.
pub(super) trait Value {
    /// Whether the setting is set.
    fn is_set(&self) -> bool {
        true
    }
}

impl Value for Duration {}
impl Value for PathBuf {}
impl Value for f32 {}

impl Value for bool {
    fn is_set(&self) -> bool {
        *self
    }
}

impl Value for String {
    fn is_set(&self) -> bool {
        !self.is_empty()
    }
}

impl<T: Value> Value for Option<T> {
    fn is_set(&self) -> bool {
        self.as_ref().is_some_and(T::is_set)
    }
}

/// The names of those settings that are set.
pub(super) fn set<'n>(settings: &[(&'n str, &dyn Value)]) -> Vec<&'n str> {
    let set = settings.iter().filter(|(_, value)| value.is_set());
    set.map(|&(name, _)| name).collect()
}

/// Adds one warning that names all of `settings` that are set.
pub(super) fn no_effect(settings: &[(&str, &dyn Value)], reason: &str, warnings: &mut Vec<String>) {
    warnings.extend(without_effect(&set(settings), reason));
}

/// The warning about settings with these names, if there are any.
pub(super) fn without_effect(names: &[&str], reason: &str) -> Option<String> {
    match names {
        [] => None,
        [name] => Some(format!("{name} has no effect: {reason}")),
        several => Some(format!("{} have no effect: {reason}", several.join(", "))),
    }
}

/// The text of a setting, unless it is empty.
pub(super) fn non_empty(text: Option<&String>) -> Option<&str> {
    text.map(String::as_str).filter(|text| !text.is_empty())
}

/// The parts of a list with commas.
pub(super) fn list(text: &str) -> impl Iterator<Item = &str> {
    text.split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty())
}
