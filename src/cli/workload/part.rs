//! The parts of a value: text, fields, and generators such as `{uniform:1..9}`.

use std::path::Path;

use rand::RngExt;
use rand::rngs::SmallRng;

use crate::cli::amount;
use crate::net::bounded;

/// The longest file of values in bytes, and the longest of its lines.
const MAX_FILE_BYTES: u64 = 64 << 20;
const MAX_LINE_BYTES: usize = 4_096;

/// Exponents of `zipf`. With the largest one, the first value takes more than 99 % of the draws.
const EXPONENTS: std::ops::RangeInclusive<f64> = 0.01..=8.0;

/// The most values of `zipf`: whole numbers up to here are exact as f64.
const MAX_RANKS: u64 = 1 << 53;

/// Generators between braces, for messages.
const GENERATORS: &str =
    "write {uniform:A..B}, {zipf:A..B:EXPONENT}, {sequence}, {uuid} or {file:PATH}";

/// A part of a value.
#[derive(Clone, Debug)]
pub(super) enum ValuePart {
    Text(Vec<u8>),
    /// A field of the record that the caller has, by its index in the names of the template.
    Field(usize),
    Number(Number),
    /// 1, 2, 3, ...
    Sequence(u64),
    /// A random UUID (RFC 9562, version 4).
    Uuid,
    /// A random line of a file.
    Line(FileLines),
}

/// A random number.
#[derive(Clone, Debug)]
pub(super) enum Number {
    /// Each from the first to the last equally often.
    Uniform(u64, u64),
    Zipf(Zipf),
}

impl ValuePart {
    /// Reads the text between braces. `field` gives the index of a field, or `None` where there
    /// are no fields.
    ///
    /// # Errors
    /// What is wrong, and what to write.
    pub(super) fn parse(
        text: &str,
        field: impl FnOnce(&str) -> Option<usize>,
    ) -> Result<Self, String> {
        let (name, argument) = match text.split_once(':') {
            Some((name, argument)) => (name, Some(argument)),
            None => (text, None),
        };
        let part = match (name, argument) {
            ("uniform", Some(range)) => {
                let (low, high) = range_of(range)?;
                Some(Self::Number(Number::Uniform(low, high)))
            }
            ("zipf", Some(argument)) => Some(Self::Number(Number::Zipf(Zipf::parse(argument)?))),
            ("sequence", None) => Some(Self::Sequence(0)),
            ("uuid", None) => Some(Self::Uuid),
            ("file", Some(path)) => Some(Self::Line(FileLines::read(path)?)),
            (_, None) => field(name).map(Self::Field),
            _ => None,
        };
        part.ok_or_else(|| {
            let text = text.escape_debug();
            format!("`{{{text}}}` is no generator: {GENERATORS}")
        })
    }

    /// Appends the next value of this part. False: the field is missing in the record.
    pub(super) fn fill<'a>(
        &mut self,
        random: &mut SmallRng,
        field: impl FnOnce(usize) -> Option<&'a [u8]>,
        out: &mut Vec<u8>,
    ) -> bool {
        match self {
            Self::Text(text) => out.extend_from_slice(text),
            Self::Field(index) => match field(*index) {
                Some(value) => out.extend_from_slice(value),
                None => return false,
            },
            Self::Number(number) => put_number(out, number.draw(random)),
            Self::Sequence(last) => {
                *last = last.wrapping_add(1);
                put_number(out, *last);
            }
            Self::Uuid => {
                let id = uuid::Builder::from_random_bytes(random.random()).into_uuid();
                let text = id.as_hyphenated();
                out.extend_from_slice(text.encode_lower(&mut [0; 36]).as_bytes());
            }
            Self::Line(lines) => out.extend_from_slice(lines.draw(random)),
        }
        true
    }
}

impl Number {
    fn draw(&self, random: &mut SmallRng) -> u64 {
        match self {
            Self::Uniform(low, high) => random.random_range(*low..=*high),
            Self::Zipf(zipf) => zipf.draw(random),
        }
    }
}

fn put_number(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

/// `A..B`, both of which can occur.
fn range_of(text: &str) -> Result<(u64, u64), String> {
    let numbers = text.split_once("..");
    let numbers = numbers.and_then(|(low, high)| Some((low.parse().ok()?, high.parse().ok()?)));
    match numbers {
        Some((low, high)) if low <= high => Ok((low, high)),
        Some((low, high)) => Err(format!(
            "{low}..{high} has no numbers; write the smaller one first"
        )),
        None => {
            let (text, remedy) = (text.escape_debug(), "write A..B, such as 1..500");
            Err(format!("`{text}` is no range of whole numbers; {remedy}"))
        }
    }
}

/// Numbers of which the n-th is drawn 1 / n^exponent times as often as the first.
#[derive(Clone, Debug)]
pub(super) struct Zipf {
    first: u64,
    ranks: rand_distr::Zipf<f64>,
}

impl Zipf {
    fn parse(text: &str) -> Result<Self, String> {
        let Some((range, exponent)) = text.rsplit_once(':') else {
            return Err("an exponent is missing; write {zipf:A..B:EXPONENT}".to_owned());
        };
        let (low, high) = range_of(range)?;
        if high - low >= MAX_RANKS {
            let what = format!("at most {MAX_RANKS} values can be drawn");
            return Err(format!("{what}; write a smaller range"));
        }
        let exponent = exponent.parse().ok();
        let exponent = exponent.filter(|number| EXPONENTS.contains(number));
        let ranks = |exponent| rand_distr::Zipf::new((high - low + 1) as f64, exponent).ok();
        let (first, ranks) = (low, exponent.and_then(ranks));
        let zipf = ranks.map(|ranks| Self { first, ranks });
        zipf.ok_or_else(|| {
            let (least, most) = EXPONENTS.into_inner();
            format!("the exponent is a number from {least} to {most}")
        })
    }

    fn draw(&self, random: &mut SmallRng) -> u64 {
        self.first + (random.sample(self.ranks) as u64 - 1)
    }
}

/// The lines of a file that are not empty, without their ends.
#[derive(Clone, Debug)]
pub(super) struct FileLines {
    bytes: Vec<u8>,
    /// Where lines begin and end.
    ranges: Vec<(u32, u32)>,
}

impl FileLines {
    fn read(path: &str) -> Result<Self, String> {
        let bytes = bounded::read_input(Path::new(path), MAX_FILE_BYTES);
        let bytes = bytes.map_err(|error| format!("{path}: it cannot be read ({error})"))?;
        let what = format_args!("it has more than {MAX_FILE_BYTES} bytes; use a part of it");
        let bytes = bytes.ok_or_else(|| format!("{path}: {what}"))?;
        let (mut ranges, mut start) = (Vec::new(), 0);
        for (number, line) in (1..).zip(bytes.split(|&byte| byte == b'\n')) {
            let length = line.strip_suffix(b"\r").unwrap_or(line).len();
            if length > MAX_LINE_BYTES {
                let what = format_args!("the line has more than {MAX_LINE_BYTES} bytes");
                return Err(format!("{path}:{number}: {what}"));
            }
            if length > 0 {
                ranges.push((start, start + length as u32));
            }
            start += line.len() as u32 + 1;
        }
        if ranges.is_empty() {
            return Err(format!("{path}: it has no lines; write a value on each"));
        }
        Ok(Self { bytes, ranges })
    }

    fn draw(&self, random: &mut SmallRng) -> &[u8] {
        let (start, end) = self.ranges[random.random_range(..self.ranges.len())];
        &self.bytes[start as usize..end as usize]
    }
}

/// The hits of a descriptor: a number, or one that is drawn, such as `{uniform:1..500}`.
#[derive(Clone, Debug)]
pub(crate) struct Hits(Number);

impl Hits {
    /// Reads hits; 0 peeks without counting.
    ///
    /// # Errors
    /// What is wrong, and what to write.
    pub(in crate::cli) fn parse(text: &str) -> Result<Self, String> {
        let between = text.strip_prefix('{');
        let between = between.and_then(|rest| rest.strip_suffix('}'));
        let between = between.map(|between| ValuePart::parse(between, |_| None));
        match (between.transpose()?, amount::whole(text)) {
            (Some(ValuePart::Number(number)), _) => Ok(Self(number)),
            (None, Ok(hits)) => Ok(Self(Number::Uniform(hits, hits))),
            _ => Err("write a number, such as 1, or {uniform:1..500}".to_owned()),
        }
    }

    /// Whether all hits are 0.
    pub(in crate::cli) const fn are_none(&self) -> bool {
        matches!(self.0, Number::Uniform(_, 0))
    }

    /// The hits of the next descriptor.
    pub(super) fn draw(&self, random: &mut SmallRng) -> u64 {
        self.0.draw(random)
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    /// Draws per rank against the weights, for exponents around 1 and far from it.
    #[test]
    fn draws_of_zipf_have_its_weights() {
        const DRAWS: u32 = 200_000;
        for exponent in [0.01, 0.5, 0.999_999_999, 1.0, 1.2, 3.0, 8.0] {
            for ranks in [1_u64, 2, 3, 50] {
                let text = format!("100..{}:{exponent}", 99 + ranks);
                let zipf = Zipf::parse(&text).expect("ranks");
                let mut random = SmallRng::seed_from_u64(7);
                let mut counts = vec![0_u32; ranks as usize];
                for _ in 0..DRAWS {
                    counts[(zipf.draw(&mut random) - 100) as usize] += 1;
                }
                let weights = (1..=ranks).map(|rank| (rank as f64).powf(-exponent));
                let sum: f64 = weights.clone().sum();
                let excess = |(count, weight): (&u32, f64)| {
                    let expected = f64::from(DRAWS) * weight / sum;
                    (f64::from(*count) - expected).powi(2) / expected.max(1.0)
                };
                let chi_squared: f64 = counts.iter().zip(weights).map(excess).sum();
                // For 49 degrees of freedom, 99.99 % are below 98.
                assert!(
                    chi_squared < 98.0,
                    "{exponent} {ranks}: {chi_squared} {counts:?}"
                );
            }
        }
    }

    #[test]
    fn zipf_takes_the_largest_ranges() {
        let mut random = SmallRng::seed_from_u64(7);
        for (text, exponent) in [
            ("0..9007199254740991", 0.01),
            ("5..18446744073709551615", 8.0),
        ] {
            let zipf = ValuePart::parse(&format!("zipf:{text}:{exponent}"), |_| None);
            assert_eq!(zipf.is_ok(), exponent < 1.0, "{zipf:?}");
            if let Ok(ValuePart::Number(number)) = zipf {
                let draws: Vec<_> = (0..1_000).map(|_| number.draw(&mut random)).collect();
                assert!(draws.iter().any(|&draw| draw > 1 << 52), "{draws:?}");
                assert!(draws.iter().all(|&draw| draw < 1 << 53), "{draws:?}");
            }
        }
    }

    #[test]
    fn uuids_are_of_version_4() {
        let mut random = SmallRng::seed_from_u64(7);
        let mut texts = Vec::new();
        for _ in 0..100 {
            let mut out = Vec::new();
            ValuePart::Uuid.fill(&mut random, |_| None, &mut out);
            let text = String::from_utf8(out).expect("a text");
            let id: uuid::Uuid = text.parse().expect("a UUID");
            assert_eq!(id.to_string(), text);
            let (version, variant) = (id.get_version_num(), id.get_variant());
            assert_eq!((version, variant), (4, uuid::Variant::RFC4122), "{text}");
            texts.push(text);
        }
        texts.sort_unstable();
        texts.dedup();
        assert_eq!(texts.len(), 100);
    }

    #[test]
    fn hits_are_read() {
        let mut random = SmallRng::seed_from_u64(1);
        let hits = Hits::parse("3").expect("hits");
        assert_eq!(hits.draw(&mut random), 3);
        let hits = Hits::parse("{uniform:4..5}").expect("hits");
        let draws: Vec<_> = (0..100).map(|_| hits.draw(&mut random)).collect();
        assert!(draws.contains(&4) && draws.contains(&5));
        for text in [
            "",
            "-1",
            "1.5",
            "{uuid}",
            "{sequence}",
            "{uniform:2..1}",
            "{uniform:1..2}x",
        ] {
            assert!(Hits::parse(text).is_err(), "{text}");
        }
    }
}
