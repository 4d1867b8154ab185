//! Structured Fields: how names and numbers enter a header.
//!
//! No text enters one except as [`shown`](crate::limits::rules::shown_name::shown) has it. Source: RFC
//! 9651, sections 3.3.1 and 3.3.3.

use sfv::{Integer, StringRef, string_ref};

/// A shown name as a value of a Structured Field.
pub(super) fn string(name: &str) -> &StringRef {
    // Cannot fail: all of it is printable ASCII.
    StringRef::from_str(name).unwrap_or(string_ref(""))
}

/// A number as a value of a Structured Field, which has at most 15 digits: a larger number becomes
/// the largest one.
pub(super) fn integer(number: impl TryInto<Integer>) -> Integer {
    number.try_into().unwrap_or(Integer::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use sfv::{BareItem, Item, KeyRef, List, ListEntry, ListSerializer, Parser};

    use super::*;
    use crate::limits::rules::shown_name::shown;

    proptest! {
        #![proptest_config(crate::testing::property(256))]

        /// Any name and any numbers are one member of a list that a parser reads back, and one line
        /// of printable ASCII.
        #[test]
        fn what_is_written_is_read_back(
            members in proptest::collection::vec((proptest::collection::vec(any::<u8>(), 0..200), any::<u64>(), any::<u64>()), 1..20),
        ) {
            let (quota, window) = (KeyRef::constant("q"), KeyRef::constant("w"));
            let mut list = ListSerializer::new();
            for (name, q, w) in &members {
                let _ = list.bare_item(string(&shown(name))).parameter(quota, integer(*q)).parameter(window, integer(*w));
            }
            let header = list.finish().expect("at least one member");
            prop_assert!(header.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{header:?}");
            let parsed: List = Parser::new(&header).parse().expect("a list");
            prop_assert_eq!(parsed.len(), members.len());
            for (entry, (name, q, w)) in parsed.iter().zip(&members) {
                let ListEntry::Item(Item { bare_item: BareItem::String(read), params }) = entry else { panic!("a string: {entry:?}") };
                prop_assert_eq!(read.as_str(), shown(name));
                let number = |key: &KeyRef| match params.get(key) { Some(BareItem::Integer(number)) => i64::from(*number), other => panic!("{other:?}") };
                let capped = |number: u64| number.min(999_999_999_999_999) as i64;
                prop_assert_eq!([number(quota), number(window)], [capped(*q), capped(*w)]);
            }
        }
    }
}
