//! The parts of a value: text, fields, and generators such as `{uniform:1..9}`.

use std::fmt::Write;
use std::fs::File;
use std::io::Read;

use crate::cli::amount;

/// The longest file of values in bytes, and the longest of its lines.
const MAX_FILE_BYTES: u64 = 64 << 20;
const MAX_LINE_BYTES: usize = 4_096;

/// Exponents of `zipf`. With the largest one, the first value takes more than 99 % of the draws.
const EXPONENTS: std::ops::RangeInclusive<f64> = 0.01..=8.0;

/// The most values of `zipf`: whole numbers up to here are exact as f64.
const MAX_RANKS: u64 = 1 << 53;

/// What stands between braces.
const GENERATORS: &str =
    "write {uniform:A..B}, {zipf:A..B:EXPONENT}, {sequence}, {uuid} or {file:PATH}";

/// A part of a value.
#[derive(Clone, Debug)]
pub(super) enum Part {
    Text(Vec<u8>),
    /// A field of the record that the caller has, by its index in the names of the template.
    Field(usize),
    Number(Number),
    /// 1, 2, 3, ...
    Sequence(u64),
    /// A random UUID (RFC 9562, version 4).
    Uuid,
    /// A random line of a file.
    Line(Lines),
}

/// A random number.
#[derive(Clone, Debug)]
pub(super) enum Number {
    /// Each from the first to the last equally often.
    Uniform(u64, u64),
    Zipf(Zipf),
}

impl Part {
    /// Reads what stands between braces. `field` gives the index of a field, or `None` where there
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
        let unknown = || {
            format!(
                "`{{{}}}` is no generator: {GENERATORS}",
                text.escape_debug()
            )
        };
        match (name, argument) {
            ("uniform", Some(range)) => {
                let (low, high) = range_of(range)?;
                Ok(Self::Number(Number::Uniform(low, high)))
            }
            ("zipf", Some(argument)) => {
                Zipf::parse(argument).map(|zipf| Self::Number(Number::Zipf(zipf)))
            }
            ("sequence", None) => Ok(Self::Sequence(0)),
            ("uuid", None) => Ok(Self::Uuid),
            ("file", Some(path)) => Lines::read(path).map(Self::Line),
            (_, None) => field(name).map(Self::Field).ok_or_else(unknown),
            _ => Err(unknown()),
        }
    }

    /// Appends the next value of this part. False: the record lacks the field.
    pub(super) fn fill<'a>(
        &mut self,
        random: &mut fastrand::Rng,
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
            Self::Uuid => put_uuid(out, random.u128(..)),
            Self::Line(lines) => out.extend_from_slice(lines.draw(random)),
        }
        true
    }
}

impl Number {
    fn draw(&self, random: &mut fastrand::Rng) -> u64 {
        match self {
            Self::Uniform(low, high) => random.u64(low..=high),
            Self::Zipf(zipf) => zipf.draw(random),
        }
    }
}

fn put_number(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

fn put_uuid(out: &mut Vec<u8>, bits: u128) {
    let bits = bits & !(0xf << 76) & !(0b11 << 62) | 4 << 76 | 0b10 << 62;
    let mut hex = String::with_capacity(32);
    // A String takes whatever is written.
    let _ = write!(hex, "{bits:032x}");
    for (index, group) in [0..8, 8..12, 12..16, 16..20, 20..32]
        .into_iter()
        .enumerate()
    {
        if index > 0 {
            out.push(b'-');
        }
        out.extend_from_slice(&hex.as_bytes()[group]);
    }
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
        None => Err(format!(
            "`{}` is no range of whole numbers; write A..B, such as 1..500",
            text.escape_debug()
        )),
    }
}

/// Numbers of which the n-th is drawn 1 / n^exponent times as often as the first.
///
/// Rejection-inversion: exact, and a draw costs the same for any number of values. Source:
/// W. Hörmann and G. Derflinger, "Rejection-inversion to generate variates from monotone discrete
/// distributions", ACM Transactions on Modeling and Computer Simulation 6 (3), 1996.
#[derive(Clone, Debug)]
pub(super) struct Zipf {
    first: u64,
    ranks: f64,
    exponent: f64,
    /// The integral at the lower end of the first rank, less its weight; and at the upper end of
    /// the last one.
    from: f64,
    to: f64,
    /// A rank at most so far below the drawn number is taken without a further look.
    squeeze: f64,
}

impl Zipf {
    fn parse(text: &str) -> Result<Self, String> {
        let Some((range, exponent)) = text.rsplit_once(':') else {
            return Err("an exponent is missing; write {zipf:A..B:EXPONENT}".to_owned());
        };
        let (low, high) = range_of(range)?;
        let exponent = exponent
            .parse()
            .ok()
            .filter(|number| EXPONENTS.contains(number));
        let Some(exponent) = exponent else {
            return Err(format!(
                "the exponent is a number from {} to {}",
                EXPONENTS.start(),
                EXPONENTS.end()
            ));
        };
        if high - low >= MAX_RANKS {
            return Err(format!(
                "at most {MAX_RANKS} values can be drawn; write a smaller range"
            ));
        }
        Ok(Self::new(low, high - low + 1, exponent))
    }

    fn new(first: u64, ranks: u64, exponent: f64) -> Self {
        let mut zipf = Self {
            first,
            ranks: ranks as f64,
            exponent,
            from: 0.0,
            to: 0.0,
            squeeze: 0.0,
        };
        zipf.from = zipf.integral(1.5) - 1.0;
        zipf.to = zipf.integral(zipf.ranks + 0.5);
        zipf.squeeze = 2.0 - zipf.inverse(zipf.integral(2.5) - zipf.weight(2.0));
        zipf
    }

    fn draw(&self, random: &mut fastrand::Rng) -> u64 {
        // A turn ends with a probability above one half, whatever the exponent.
        loop {
            let area = self.to + random.f64() * (self.from - self.to);
            let drawn = self.inverse(area);
            let rank = drawn.round().clamp(1.0, self.ranks);
            if rank - drawn <= self.squeeze || area >= self.integral(rank + 0.5) - self.weight(rank)
            {
                return self.first + (rank as u64 - 1);
            }
        }
    }

    fn weight(&self, rank: f64) -> f64 {
        (-self.exponent * rank.ln()).exp()
    }

    /// The integral of the weight from 1: (x^(1-s) - 1) / (1-s), or ln x for s = 1.
    fn integral(&self, x: f64) -> f64 {
        let power = (1.0 - self.exponent) * x.ln();
        if power.abs() < 1e-12 {
            x.ln()
        } else {
            power.exp_m1() / power * x.ln()
        }
    }

    fn inverse(&self, area: f64) -> f64 {
        let power = (1.0 - self.exponent) * area;
        if power.abs() < 1e-12 {
            area.exp()
        } else {
            // Rounding may lead below the pole at -1.
            (power.max(-1.0).ln_1p() / power * area).exp()
        }
    }
}

/// The lines of a file that are not empty, without their ends.
#[derive(Clone, Debug)]
pub(super) struct Lines {
    bytes: Vec<u8>,
    /// Where lines begin and end.
    ranges: Vec<(u32, u32)>,
}

impl Lines {
    fn read(path: &str) -> Result<Self, String> {
        let failed = |error| format!("{path}: it cannot be read ({error})");
        let mut bytes = Vec::new();
        let file = File::open(path).map_err(failed)?;
        file.take(MAX_FILE_BYTES + 1)
            .read_to_end(&mut bytes)
            .map_err(failed)?;
        if bytes.len() as u64 > MAX_FILE_BYTES {
            return Err(format!(
                "{path}: it has more than {MAX_FILE_BYTES} bytes; use a part of it"
            ));
        }
        let (mut ranges, mut start) = (Vec::new(), 0);
        for (number, line) in bytes.split(|&byte| byte == b'\n').enumerate() {
            let length = line.strip_suffix(b"\r").unwrap_or(line).len();
            if length > MAX_LINE_BYTES {
                return Err(format!(
                    "{path}:{}: the line has more than {MAX_LINE_BYTES} bytes",
                    number + 1
                ));
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

    fn draw(&self, random: &mut fastrand::Rng) -> &[u8] {
        let (start, end) = self.ranges[random.usize(..self.ranges.len())];
        &self.bytes[start as usize..end as usize]
    }
}

/// The hits of a descriptor: a number, or one that is drawn, such as `{uniform:1..500}`.
#[derive(Clone, Debug)]
pub(crate) struct Hits(Number);

impl Hits {
    /// Reads hits; 0 looks without counting.
    ///
    /// # Errors
    /// What is wrong, and what to write.
    pub(in crate::cli) fn parse(text: &str) -> Result<Self, String> {
        let between = text
            .strip_prefix('{')
            .and_then(|rest| rest.strip_suffix('}'));
        let number = match between {
            Some(between) => match Part::parse(between, |_| None)? {
                Part::Number(number) => Some(number),
                _ => None,
            },
            None => amount::whole(text)
                .ok()
                .map(|hits| Number::Uniform(hits, hits)),
        };
        number
            .map(Self)
            .ok_or_else(|| "write a number, such as 1, or {uniform:1..500}".to_owned())
    }

    /// The hits of the next descriptor.
    pub(super) fn draw(&self, random: &mut fastrand::Rng) -> u64 {
        self.0.draw(random)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Draws per rank against the weights, for exponents around 1 and far from it.
    #[test]
    fn draws_of_zipf_have_its_weights() {
        const DRAWS: u32 = 200_000;
        for exponent in [0.01, 0.5, 0.999_999_999, 1.0, 1.2, 3.0, 8.0] {
            for ranks in [1, 2, 3, 50] {
                let zipf = Zipf::new(100, ranks, exponent);
                let mut random = fastrand::Rng::with_seed(7);
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
        let mut random = fastrand::Rng::with_seed(7);
        for (text, exponent) in [
            ("0..9007199254740991", 0.01),
            ("5..18446744073709551615", 8.0),
        ] {
            let zipf = Part::parse(&format!("zipf:{text}:{exponent}"), |_| None);
            assert_eq!(zipf.is_ok(), exponent < 1.0, "{zipf:?}");
            if let Ok(Part::Number(number)) = zipf {
                let draws: Vec<_> = (0..1_000).map(|_| number.draw(&mut random)).collect();
                assert!(draws.iter().any(|&draw| draw > 1 << 52), "{draws:?}");
                assert!(draws.iter().all(|&draw| draw < 1 << 53), "{draws:?}");
            }
        }
    }

    #[test]
    fn uuids_are_of_version_4() {
        for bits in [0, u128::MAX] {
            let mut out = Vec::new();
            put_uuid(&mut out, bits);
            let digit = if bits == 0 { '0' } else { 'f' };
            let variant = if bits == 0 { '8' } else { 'b' };
            let text = "xxxxxxxx-xxxx-4xxx-Vxxx-xxxxxxxxxxxx".replace('x', &digit.to_string());
            assert_eq!(
                String::from_utf8_lossy(&out),
                text.replace('V', &variant.to_string())
            );
        }
    }

    #[test]
    fn hits_are_read() {
        let mut random = fastrand::Rng::with_seed(1);
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
