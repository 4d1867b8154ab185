//! Time zones by their names in the IANA time zone database.
//!
//! The rules of the zones are in the binary, because the zone files of machines differ: all
//! replicas of one version of Weir have the same rules.

use std::fmt;
use std::sync::{LazyLock, OnceLock};

use jiff::tz::{TimeZone, TimeZoneDatabase};

/// A time zone of the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Zone(u16);

struct ZoneEntry {
    name: Box<str>,
    /// Read when the zone is used for the first time.
    rules: OnceLock<TimeZone>,
}

/// All zones and their other names, in the order of [`order`]. There are about 600, and each has a
/// few KiB: their memory is bounded.
static ZONES: LazyLock<Vec<ZoneEntry>> = LazyLock::new(|| {
    let mut all: Vec<ZoneEntry> = TimeZoneDatabase::bundled()
        .available()
        .map(|name| ZoneEntry {
            name: name.as_str().into(),
            rules: OnceLock::new(),
        })
        .collect();
    all.sort_by(|left, right| order(&left.name, &right.name));
    all
});

/// The order of names in any letter case.
fn order(left: &str, right: &str) -> std::cmp::Ordering {
    let left = left.bytes().map(|byte| byte.to_ascii_lowercase());
    left.cmp(right.bytes().map(|byte| byte.to_ascii_lowercase()))
}

impl Zone {
    /// Universal time.
    pub fn utc() -> Self {
        Self::named("UTC").unwrap_or(Self(0))
    }

    /// The zone of that name, in any letter case.
    pub fn named(name: &str) -> Option<Self> {
        let index = ZONES
            .binary_search_by(|known| order(&known.name, name))
            .ok()?;
        let zone = Self(u16::try_from(index).ok()?);
        // Reads the rules now, because a request should not wait for it.
        zone.rules();
        Some(zone)
    }

    /// All names, sorted.
    pub fn names() -> impl Iterator<Item = &'static str> {
        ZONES.iter().map(|known| &*known.name)
    }

    /// The name as the database spells it. It holds ASCII letters, digits, `/`, `_`, `-` and `+`.
    pub fn name(self) -> &'static str {
        ZONES
            .get(usize::from(self.0))
            .map_or("UTC", |known| &known.name)
    }

    pub(super) fn index(self) -> u64 {
        self.0.into()
    }

    /// The offsets from UTC, and the instants at which they change.
    pub(super) fn rules(self) -> &'static TimeZone {
        static UTC: TimeZone = TimeZone::UTC;
        ZONES.get(usize::from(self.0)).map_or(&UTC, |known| {
            known.rules.get_or_init(|| {
                TimeZoneDatabase::bundled()
                    .get(&known.name)
                    .unwrap_or(TimeZone::UTC)
            })
        })
    }
}

impl fmt::Display for Zone {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_zone_is_found_by_its_name_and_has_rules_of_its_own() {
        assert!((500..2_000).contains(&ZONES.len()), "{} zones", ZONES.len());
        for name in Zone::names() {
            let zone = Zone::named(name).unwrap_or_else(|| panic!("{name} is not found"));
            assert_eq!(
                (zone.name(), Zone::named(&name.to_uppercase())),
                (name, Some(zone))
            );
            assert!(
                name.bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || b"/_-+".contains(&byte)),
                "{name} in a key"
            );
            // `UTC` replaces rules that cannot be read.
            let is_utc = zone.rules() == &TimeZone::UTC;
            assert!(!is_utc || name == "UTC", "{name} has no data");
        }
        assert_eq!(Zone::utc().name(), "UTC");
        for name in ["", "Europe", "Europe/Atlantis", "+02:00", "../etc/passwd"] {
            assert_eq!(Zone::named(name), None, "{name}");
        }
    }
}
