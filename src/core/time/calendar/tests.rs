//! Properties of calendars; `tests/it/decisions/calendars.rs` compares their windows with another
//! implementation.

use proptest::prelude::*;

use super::*;
use crate::core::time::WEEKDAYS;

const UNITS: [Unit; 5] = [
    Unit::Day,
    Unit::Week,
    Unit::Month,
    Unit::Quarter,
    Unit::Year,
];

fn calendar(unit: Unit, zone: &str, anchor: Option<&str>) -> Calendar {
    let zone = Zone::named(zone).unwrap_or_else(|| panic!("no zone {zone}"));
    Calendar::new(
        unit,
        zone,
        Weekday::Monday,
        anchor.map(|text| text.parse().expect("an anchor")),
    )
    .expect("a calendar")
}

fn tag(calendar: Calendar) -> String {
    let mut out = Vec::new();
    calendar.write_tag(&mut out);
    String::from_utf8(out).expect("ASCII")
}

/// Any calendar.
fn calendars() -> impl Strategy<Value = Calendar> {
    let names: Vec<&str> = Zone::names().collect();
    let anchor = prop::option::of(
        (1..=12_i8, 1..=31_i8, prop::option::of(0..86_400_u32)).prop_map(|(month, day, secs)| {
            let first = Date::constant(2024, month, 1);
            let date = first
                .with()
                .day(day.min(first.days_in_month()))
                .build()
                .expect("a day");
            let time = secs.map_or_else(String::new, |secs| {
                format!(
                    "T{:02}:{:02}:{:02}",
                    secs / 3_600,
                    secs / 60 % 60,
                    secs % 60
                )
            });
            format!("{date}{time}").parse().expect("an anchor")
        }),
    );
    let week_starts = prop::sample::select(WEEKDAYS.map(|(_, day)| day).to_vec());
    (
        prop::sample::select(UNITS.to_vec()),
        prop::sample::select(names),
        week_starts,
        anchor,
    )
        .prop_map(|(unit, zone, week_starts, anchor)| {
            Calendar::new(
                unit,
                Zone::named(zone).expect("a zone"),
                week_starts,
                anchor,
            )
            .expect("a calendar")
        })
}

/// Instants of the years in which zones changed their rules, of the far future, and any others.
fn instants() -> impl Strategy<Value = Micros> {
    let secs =
        |range: std::ops::Range<u64>| range.prop_map(|secs| Micros(secs * MICROS_PER_SECOND));
    prop_oneof![
        4 => secs(0..4_102_444_800),
        1 => secs(0..400_000_000_000),
        1 => any::<u64>().prop_map(Micros),
    ]
}

proptest! {
    #![proptest_config(crate::testing::property(2_000))]

    #[test]
    fn windows_follow_each_other_and_contain_their_instants(
        calendar in calendars(),
        now in instants(),
    ) {
        let window = calendar.window_at(now);
        prop_assert!(
            window.begin <= now && (now < window.end || now.0 == u64::MAX),
            "{calendar:?} \
            {window:?}"
        );
        prop_assert_eq!(calendar.window(window.number), window);
        prop_assert_eq!(calendar.window(window.number + 1).begin, window.end);
        if window.begin.0 > 0 {
            prop_assert_eq!(calendar.window(window.number - 1).end, window.begin);
        }
        for (near, by) in [
            (window.begin.0.checked_sub(1), -1),
            (Some(window.begin.0), 0),
            (Some(window.end.0 - 1), 0),
            (Some(window.end.0), 1),
        ] {
            let Some(near) = near.filter(|near| *near < u64::MAX) else {
                continue;
            };
            let (found, expected) = (
                calendar.window_at(Micros(near)),
                window.number.wrapping_add_signed(by),
            );
            // Between them there may be a window that the zone has skipped, which is empty.
            let skipped = calendar.window(expected);
            if skipped.begin == skipped.end {
                prop_assert_eq!(
                    found.number,
                    expected.wrapping_add_signed(by),
                    "{:?} {:?}",
                    calendar,
                    window
                );
            } else {
                prop_assert_eq!(found, skipped);
            }
        }
    }

    /// The result does not depend on earlier look-ups.
    #[test]
    fn a_window_is_the_same_on_a_thread_that_knows_none(
        calendar in calendars(),
        instants in prop::collection::vec(instants(), 1..8),
    ) {
        let here: Vec<_> = instants
            .iter()
            .map(|now| calendar.window_at(*now))
            .collect();
        let fresh: Vec<_> = instants.iter().map(|now| calendar.find(*now)).collect();
        prop_assert_eq!(here, fresh);
    }

    #[test]
    fn two_calendars_have_one_tag_only_if_they_are_the_same(
        left in calendars(),
        right in calendars(),
    ) {
        prop_assert_eq!(left == right, tag(left) == tag(right));
        let moved = Calendar {
            time_secs: right.time_secs,
            ..left
        };
        prop_assert_eq!(left == moved, tag(left) == tag(moved));
        prop_assert!(
            tag(left)
                .bytes()
                .all(|byte| byte.is_ascii_graphic() && !b"{}:|=~#%".contains(&byte)),
            "{}",
            tag(left)
        );
    }

    /// The Gregorian calendar and the rules of zones repeat.
    #[test]
    fn after_400_years_everything_repeats(
        calendar in calendars(),
        secs in 13_000_000_000..60_000_000_000_u64,
        cycles in 1..1_000_u64,
    ) {
        let by = cycles * CYCLE_SECS.unsigned_abs() * MICROS_PER_SECOND;
        let (now, later) = (
            calendar.window_at(Micros(secs * MICROS_PER_SECOND)),
            calendar.window_at(Micros(secs * MICROS_PER_SECOND + by)),
        );
        prop_assert_eq!(
            (now.begin.0 + by, now.end.0 + by),
            (later.begin.0, later.end.0)
        );
        prop_assert_eq!(
            now.number + cycles * calendar.windows_per_cycle().unsigned_abs(),
            later.number
        );
    }

    #[test]
    fn no_number_overflows(calendar in calendars(), number in any::<u64>()) {
        let window = calendar.window(number);
        prop_assert!(window.begin <= window.end);
        prop_assert_eq!(calendar.window(number.saturating_add(1)).begin, window.end);
    }
}

#[test]
fn tags_read_well() {
    for (unit, zone, anchor, expected) in [
        (Unit::Day, "Europe/Berlin", None, "day@Europe/Berlin"),
        (
            Unit::Day,
            "europe/berlin",
            Some("2026-03-31T06:00"),
            "day-0600@Europe/Berlin",
        ),
        (Unit::Week, "UTC", None, "week-mon@UTC"),
        (
            Unit::Week,
            "UTC",
            Some("2026-03-31T06:00:30"),
            "week-tue-060030@UTC",
        ),
        (
            Unit::Month,
            "Etc/GMT+12",
            Some("2026-03-31"),
            "month-31@Etc/GMT+12",
        ),
        (
            Unit::Quarter,
            "UTC",
            Some("2026-11-30T06:00"),
            "quarter-0230-0600@UTC",
        ),
        (
            Unit::Quarter,
            "Europe/Berlin",
            None,
            "quarter-0101@Europe/Berlin",
        ),
        (
            Unit::Year,
            "America/Port-au-Prince",
            Some("2024-02-29"),
            "year-0229@America/Port-au-Prince",
        ),
    ] {
        assert_eq!(tag(calendar(unit, zone, anchor)), expected);
    }
    let anchors = [
        (Unit::Month, "2026-03-31T06:00"),
        (Unit::Year, "2024-12-24"),
        (Unit::Day, "2024-12-24T06:00"),
        (Unit::Month, "2026-01-01"),
        (Unit::Quarter, "2026-12-15"),
    ];
    let shown = anchors.map(|(unit, anchor)| {
        calendar(unit, "UTC", Some(anchor))
            .anchor()
            .unwrap_or_default()
    });
    assert_eq!(shown, ["day 31 at 06:00", "12-24", "06:00", "", "03-15"]);
}

#[test]
fn units_below_a_day_are_no_calendar() {
    for (_, unit) in Unit::NAMED {
        let calendar = Calendar::new(unit, Zone::utc(), Weekday::Monday, None);
        assert_eq!(calendar.is_some(), UNITS.contains(&unit), "{unit:?}");
    }
}
