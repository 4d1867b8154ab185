//! Lines of requests: what they ask, and whether an answer is as they write it.

use anyhow::{Context, Result, ensure};
use tonic::Status;
use weir::core::proto::rate_limit_descriptor::{Entry, RateLimitOverride};
use weir::core::proto::rate_limit_response::{Code, DescriptorStatus};
use weir::core::proto::{RateLimitDescriptor, RateLimitRequest, RateLimitResponse};
use weir::core::time::Unit;

/// The requests of a line, each with its answer.
pub fn requests<'t>(domain: &str, line: &'t str) -> Result<Vec<(RateLimitRequest, &'t str)>> {
    let (asked, expected) = line
        .split_once(" -> ")
        .context("neither a request nor a known word")?;
    let of_request = asked
        .strip_prefix('(')
        .and_then(|rest| rest.split_once(") "));
    let (hits_addend, asked) = of_request.unwrap_or(("0", asked));
    let mut answers = Vec::new();
    for answer in expected.split(", ") {
        let (count, answer) = answer.split_once(" x ").unwrap_or(("1", answer));
        answers.extend(vec![answer; count.parse()?]);
    }
    let count = answers.len();
    let request = |(index, answer)| {
        let descriptors = asked
            .split(" + ")
            .map(|text| descriptor(text, index, count));
        let request = RateLimitRequest {
            domain: domain.to_owned(),
            descriptors: descriptors.collect::<Result<_>>()?,
            hits_addend: hits_addend.parse()?,
        };
        Ok((request, answer))
    };
    answers.into_iter().enumerate().map(request).collect()
}

/// The descriptor of request `index` of so many.
fn descriptor(text: &str, index: usize, count: usize) -> Result<RateLimitDescriptor> {
    let (entries, rest) = text.split_once(" (").unwrap_or((text, ")"));
    let rest = rest.strip_suffix(')').context("no `)`")?;
    let (hits, limit) = rest.split_once("of ").unwrap_or((rest, ""));
    let mut descriptor = RateLimitDescriptor::default();
    for entry in entries.split(", ").filter(|&entry| entry != "-") {
        let (key, value) = entry.split_once('=').context("an entry without `=`")?;
        let [key, value] = [key, value].map(|text| bytes(text).context("a wrong escape"));
        descriptor.entries.push(Entry {
            key: key?,
            value: value?,
        });
    }
    let hits: Vec<_> = hits.split_whitespace().collect();
    ensure!(
        hits.len() < 2 || hits.len() == count,
        "{} hits and {count} answers",
        hits.len()
    );
    if let Some(word) = hits.get(index).or(hits.first()) {
        descriptor.is_negative_hits = word.starts_with('-');
        descriptor.hits_addend = match word.trim_start_matches('-') {
            "" => None,
            "max" => Some(u64::MAX),
            amount => Some(amount.parse()?),
        };
    }
    if let Some((amount, window)) = limit.split_once('/') {
        let name = window.trim_start_matches(|digit: char| digit.is_ascii_digit());
        let number = &window[..window.len() - name.len()];
        let unit = match name {
            "" => number.parse()?,
            _ => Unit::named(name).context("no unit")?.number(),
        };
        descriptor.limit = Some(RateLimitOverride {
            requests_per_unit: amount.parse()?,
            unit,
            unit_multiplier: number.parse().ok().filter(|_| !name.is_empty()),
        });
    }
    Ok(descriptor)
}

/// Text with its escapes: `\xNN` is a byte, and `\{N}` repeats the byte before it to N of them.
pub fn bytes(text: &str) -> Option<Vec<u8>> {
    let mut pieces = text.split('\\');
    let mut bytes = pieces.next()?.as_bytes().to_vec();
    for piece in pieces {
        let rest = if let Some(counted) = piece.strip_prefix('{') {
            let (count, rest) = counted.split_once('}')?;
            let last = bytes.pop()?;
            bytes.resize(bytes.len() + count.parse::<usize>().ok()?, last);
            rest
        } else {
            let (digits, rest) = piece.strip_prefix('x')?.split_at_checked(2)?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest
        };
        bytes.extend_from_slice(rest.as_bytes());
    }
    Some(bytes)
}

/// An answer as a line writes it, with all fields.
pub fn formatted(answer: &Result<RateLimitResponse, Status>) -> String {
    let word = |code| match code {
        Code::Ok => "ok",
        Code::OverLimit => "over",
        Code::Unknown => "unknown",
    };
    let status = |status: &DescriptorStatus| {
        let limit = status.current_limit.clone();
        let (limit, name) = limit.map_or(("none".to_owned(), String::new()), |limit| {
            let unit = u64::try_from(limit.unit).ok().and_then(Unit::from_number);
            let unit = unit.unwrap_or(Unit::None).name();
            let count = limit
                .unit_multiplier
                .map_or(String::new(), |count| count.to_string());
            (
                format!("{}/{count}{unit}", limit.requests_per_unit),
                limit.name.replace(' ', "_"),
            )
        });
        let name = if name.is_empty() { "-" } else { &name };
        let reset = status.duration_until_reset.as_ref();
        let reset = reset.map_or("none".to_owned(), |reset| reset.seconds.to_string());
        let (code, left) = (word(status.code()), status.limit_remaining);
        format!("{code} {left} of {limit} named {name} reset {reset}")
    };
    match answer {
        Ok(response) => {
            let statuses: Vec<_> = response.statuses.iter().map(status).collect();
            format!(
                "{}: {}",
                word(response.overall_code()),
                statuses.join(" + ")
            )
        }
        Err(error) => format!("{:?} {}", error.code(), error.message()),
    }
}

/// Whether an answer has what a line writes of it.
pub fn is_answer(expected: &str, actual: &str) -> Result<bool> {
    if expected.starts_with(|first: char| first.is_ascii_uppercase()) {
        let (code, text) = expected.split_once(' ').unwrap_or((expected, ""));
        return Ok(actual.starts_with(code) && actual.contains(text));
    }
    let Some((actual_code, actual)) = actual.split_once(": ") else {
        return Ok(false);
    };
    if ["ok", "over"].contains(&expected) {
        return Ok(expected == actual_code);
    }
    let (code, expected) = match expected.split_once(": ") {
        Some((code, statuses)) => (Some(code), statuses),
        None => (None, expected),
    };
    let expected: Vec<_> = expected.split(" + ").map(fields).collect::<Result<_>>()?;
    let is_over = expected.iter().any(|status| status[0].1 == "over");
    if code.unwrap_or(if is_over { "over" } else { "ok" }) != actual_code {
        return Ok(false);
    }
    let actual: Vec<_> = actual.split(" + ").map(fields).collect::<Result<_>>()?;
    let mut pairs = expected.iter().zip(&actual);
    let is_status = |(expected, actual): (&Fields<'_>, &Fields<'_>)| {
        let has = |(name, value): &(&str, &str)| {
            let mut named = actual.iter().filter(|(field, _)| field == name);
            named.any(|(_, actual)| is_value(value, actual))
        };
        expected.iter().all(has)
    };
    Ok(expected.len() == actual.len() && pairs.all(is_status))
}

/// The names and values of a status.
type Fields<'t> = Vec<(&'t str, &'t str)>;

fn fields(status: &str) -> Result<Fields<'_>> {
    let mut words = status.split(' ').peekable();
    let code = words.next().filter(|code| ["ok", "over"].contains(code));
    let mut fields = vec![("code", code.context("no code")?)];
    let left = words.next_if(|word| word.starts_with(|first: char| first.is_ascii_digit()));
    fields.extend(left.map(|left| ("left", left)));
    while let Some(name) = words.next() {
        ensure!(
            ["of", "named", "reset"].contains(&name),
            "unknown word {name:?}"
        );
        fields.push((name, words.next().context("no value")?));
    }
    Ok(fields)
}

/// Whether a value is the written one, in `A..B`, or the written one with more behind a slash.
pub fn is_value(expected: &str, actual: &str) -> bool {
    let is_between = |(from, to): (&str, &str)| {
        let (from, actual) = (from.parse::<f64>(), actual.parse::<f64>());
        let to = to.parse().unwrap_or(f64::INFINITY);
        from.is_ok_and(|from| actual.is_ok_and(|actual| (from..=to).contains(&actual)))
    };
    expected == actual
        || expected.split_once("..").is_some_and(is_between)
        || actual
            .strip_prefix(expected)
            .is_some_and(|rest| rest.starts_with('/'))
}
