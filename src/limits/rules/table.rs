//! A table: the meanings of up to millions of values, with one block of memory for all rows.
//!
//! Rows of equal meaning share it: a row is its value and five numbers. A look-up takes one hash of
//! the value and allocates nothing. The hash is keyed at random, because customers may have chosen
//! the values.
//!
//! Each plan that rows use is a compiled limit in addition to the descriptor's limit. Metrics,
//! failure policies and pages use the number of a limit as without a table. Fields of a row take
//! precedence over fields of its limit. A look-up without a table has one branch more.

use std::borrow::Cow;
use std::hash::BuildHasher;
use std::num::NonZeroU32;

use hashbrown::hash_table::Entry;
use hashbrown::{DefaultHashBuilder, HashMap, HashTable};

use super::display_name::display_name;
use super::place::Place;

/// The number of a row in its table, from 1 on, in the order of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RowNumber(NonZeroU32);

/// A row. Its texts are in the table.
#[derive(Clone, Copy, Debug)]
struct StoredRow {
    /// The begin of its value in the texts of the table.
    begin: u32,
    /// The bytes of its value.
    length: u32,
    /// The line of the file, from 1 on.
    line: u32,
    /// Its meaning, as an index in the meanings of the table.
    meaning: u32,
    /// 1 + its name, among the names of the table; 0: none.
    name: u32,
}

/// Rows by their values; `T` is the meaning of a row.
#[derive(Debug)]
pub struct Table<T> {
    /// The whole of its file.
    pub file: Place,
    rows: Vec<StoredRow>,
    by_value: HashTable<u32>,
    hasher: DefaultHashBuilder,
    /// Values and names.
    texts: Vec<u8>,
    /// The begin of each name in the texts, and its bytes.
    names: Vec<(u32, u32)>,
    /// Names as answers show them, by their numbers, where these differ from the names.
    displayed: HashMap<u32, Box<str>>,
    meanings: Vec<T>,
}

/// Why a row is not in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotAdded {
    /// The row of this line has the same value.
    Repeated {
        /// From 1 on.
        line: u32,
    },
    /// The texts have 4 GiB, or there are 2^32 rows.
    Full,
}

impl<T> Table<T> {
    /// A table without rows.
    pub fn new(file: Place) -> Self {
        Self {
            file,
            rows: Vec::new(),
            by_value: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
            texts: Vec::new(),
            names: Vec::new(),
            displayed: HashMap::new(),
            meanings: Vec::new(),
        }
    }

    /// Adds a meaning of rows, and returns its number.
    pub fn add_meaning(&mut self, meaning: T) -> u32 {
        self.meanings.push(meaning);
        index(self.meanings.len() - 1)
    }

    /// Adds a name of rows, and returns its number; `None` if nothing more fits.
    pub fn add_name(&mut self, name: &str) -> Option<u32> {
        let begin = u32::try_from(self.texts.len()).ok()?;
        let length = u32::try_from(name.len()).ok()?;
        self.texts.extend_from_slice(name.as_bytes());
        self.names.push((begin, length));
        let number = index(self.names.len() - 1);
        if let Cow::Owned(escaped) = display_name(name.as_bytes()) {
            self.displayed.insert(number, escaped.into());
        }
        Some(number)
    }

    /// The name with this number.
    pub fn name_of(&self, number: u32) -> Option<&str> {
        let (begin, length) = *self.names.get(number as usize)?;
        str::from_utf8(text(&self.texts, begin, length)).ok()
    }

    /// Adds a row with a value, the line of its file, the number of its meaning, and the number of
    /// its name.
    ///
    /// # Errors
    /// A row has the value already, or nothing more fits.
    pub fn add(
        &mut self,
        value: &[u8],
        line: u32,
        meaning: u32,
        name: Option<u32>,
    ) -> Result<(), NotAdded> {
        let (begin, length) = (u32::try_from(self.texts.len()), u32::try_from(value.len()));
        let (Ok(begin), Ok(length), Ok(number)) = (begin, length, u32::try_from(self.rows.len()))
        else {
            return Err(NotAdded::Full);
        };
        let (rows, values, hasher) = (&self.rows, &self.texts, &self.hasher);
        let entry = self.by_value.entry(
            hasher.hash_one(value),
            |&row| value_of(rows, values, row) == Some(value),
            |&row| hasher.hash_one(value_of(rows, values, row).unwrap_or_default()),
        );
        match entry {
            Entry::Occupied(first) => {
                let first = self.rows.get(*first.get() as usize);
                let line = first.map_or(0, |row| row.line);
                Err(NotAdded::Repeated { line })
            }
            Entry::Vacant(entry) => {
                entry.insert(number);
                self.texts.extend_from_slice(value);
                self.rows.push(StoredRow {
                    begin,
                    length,
                    line,
                    meaning,
                    name: name.map_or(0, |name| name + 1),
                });
                Ok(())
            }
        }
    }

    /// Frees the spare memory for further rows.
    pub fn complete(&mut self) {
        self.rows.shrink_to_fit();
        self.texts.shrink_to_fit();
        self.names.shrink_to_fit();
        self.meanings.shrink_to_fit();
        let (rows, values, hasher) = (&self.rows, &self.texts, &self.hasher);
        self.by_value
            .shrink_to_fit(|&row| hasher.hash_one(value_of(rows, values, row).unwrap_or_default()));
    }

    /// The row of a value.
    pub fn find(&self, value: &[u8]) -> Option<RowNumber> {
        let is_it = |&row: &u32| value_of(&self.rows, &self.texts, row) == Some(value);
        let row = self.by_value.find(self.hasher.hash_one(value), is_it)?;
        RowNumber::of_index(*row)
    }

    fn row(&self, RowNumber(number): RowNumber) -> Option<&StoredRow> {
        self.rows.get(number.get() as usize - 1)
    }

    /// The line of a row, from 1 on; 0 if the table has no such row.
    pub fn line(&self, row: RowNumber) -> u32 {
        self.row(row).map_or(0, |row| row.line)
    }

    /// The meaning of a row.
    pub fn meaning(&self, row: RowNumber) -> Option<&T> {
        self.meanings.get(self.row(row)?.meaning as usize)
    }

    /// All meanings of rows, each once.
    pub fn meanings(&self) -> &[T] {
        &self.meanings
    }

    /// The value of a row.
    pub fn value(&self, row: RowNumber) -> &[u8] {
        let row = self.row(row);
        row.map_or(&[], |row| text(&self.texts, row.begin, row.length))
    }

    /// The name of a row, if it has one.
    pub fn name(&self, row: RowNumber) -> Option<&str> {
        self.name_of(self.row(row)?.name.checked_sub(1)?)
    }

    /// The name of a row as answers show it.
    pub fn display_name(&self, row: RowNumber) -> Option<&str> {
        let number = self.row(row)?.name.checked_sub(1)?;
        let displayed = self.displayed.get(&number).map(AsRef::as_ref);
        displayed.or_else(|| self.name_of(number))
    }

    /// All names of rows, each once.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        (0..index(self.names.len())).filter_map(|number| self.name_of(number))
    }

    /// All rows, in the order of the file.
    pub fn rows(&self) -> impl Iterator<Item = RowNumber> {
        (0..index(self.rows.len())).filter_map(RowNumber::of_index)
    }

    /// The number of rows.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}

impl RowNumber {
    fn of_index(index: u32) -> Option<Self> {
        index.checked_add(1).and_then(NonZeroU32::new).map(Self)
    }
}

fn value_of<'v>(rows: &[StoredRow], values: &'v [u8], row: u32) -> Option<&'v [u8]> {
    let row = rows.get(row as usize)?;
    Some(text(values, row.begin, row.length))
}

fn text(texts: &[u8], begin: u32, length: u32) -> &[u8] {
    let from = texts.get(begin as usize..).unwrap_or_default();
    from.get(..length as usize).unwrap_or_default()
}

/// Callers have fewer than 2^32 of anything: [`Table::add`] counts rows, and neither names nor
/// meanings are more than rows.
fn index(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    impl<T> Table<T> {
        /// The bytes of the table, including the meanings of its rows.
        fn bytes(&self) -> usize {
            let escaped = self.displayed.allocation_size()
                + self
                    .displayed
                    .values()
                    .map(|name| name.len())
                    .sum::<usize>();
            let names = self.names.capacity() * size_of::<(u32, u32)>() + escaped;
            let rows =
                self.rows.capacity() * size_of::<StoredRow>() + self.by_value.allocation_size();
            size_of::<Self>()
                + rows
                + self.texts.capacity()
                + names
                + self.meanings.capacity() * size_of::<T>()
        }
    }

    proptest! {
        #![proptest_config(crate::testing::property(256))]

        /// It finds what a map of the first rows finds, and names the line of the first row of a
        /// value that comes again.
        #[test]
        fn it_is_a_map_of_values(
            rows in prop::collection::vec(
                (
                    prop::collection::vec(any::<u8>(), 0..3),
                    0..5_u32,
                    prop::option::of(0..3_u32),
                ),
                0..300,
            ),
            asked in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..3), 0..100),
        ) {
            let mut table = Table::new(Place::named("t.csv"));
            for meaning in 0..5_u32 {
                prop_assert_eq!(table.add_meaning(meaning * 10), meaning);
            }
            for name in 0..3 {
                prop_assert_eq!(table.add_name(&format!("n{name}")), Some(name));
            }
            let mut known: HashMap<&[u8], (u32, u32, Option<u32>)> = HashMap::new();
            for (line, (value, meaning, name)) in (2..).zip(&rows) {
                let added = table.add(value, line, *meaning, *name);
                match known.get(&**value) {
                    Some((first, ..)) => {
                        prop_assert_eq!(added, Err(NotAdded::Repeated { line: *first }));
                    }
                    None => {
                        prop_assert_eq!(added, Ok(()));
                        known.insert(value, (line, *meaning, *name));
                    }
                }
            }
            table.complete();
            prop_assert_eq!(
                (table.len(), table.rows().count()),
                (known.len(), known.len())
            );
            for value in asked.iter().chain(rows.iter().map(|(value, ..)| value)) {
                let found = table.find(value);
                let shown = found.map(|row| {
                    (
                        table.line(row),
                        table.meaning(row).copied(),
                        table.name(row).map(str::to_owned),
                    )
                });
                let expected = known.get(&**value).map(|(line, meaning, name)| {
                    (
                        *line,
                        Some(meaning * 10),
                        name.map(|name| format!("n{name}")),
                    )
                });
                prop_assert_eq!(shown, expected);
                prop_assert_eq!(found.map(|row| table.value(row)), found.map(|_| &**value));
            }
        }
    }

    #[test]
    fn a_million_rows_take_forty_bytes_each_beside_their_texts() {
        let mut table = Table::new(Place::named("t.csv"));
        table.add_meaning([0_u64; 20]);
        let rows = 1_000_000;
        let mut texts = 0;
        for number in 0..rows {
            let value = format!("tenant-{number:012}");
            texts += value.len();
            let name = format!("name of {number}");
            texts += name.len();
            let name = table.add_name(&name);
            table
                .add(value.as_bytes(), number + 2, 0, name)
                .expect("a new value");
        }
        table.complete();
        let of_row = (table.bytes() - texts) as f64 / f64::from(rows);
        assert!(of_row <= 40.0, "{of_row} bytes a row");
        assert_eq!(
            table.rows().filter_map(|row| table.name(row)).last(),
            Some("name of 999999")
        );
        let row = table.find(b"tenant-000000999999").expect("the last row");
        assert_eq!((table.line(row), row.0.get()), (1_000_001, rows));
    }
}
