//! Panes of a minute and an hour, with the time given.

use super::*;

/// Small panes: what is tested is when they are over.
const BYTES: usize = PANES * 8_192;

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn add(windows: &mut Windows, now: u64, subject: u64, hits: u64) {
    windows.advance(secs(now));
    let text = |texts: &mut Vec<u8>| {
        texts.push(b'x');
        (0, 1)
    };
    windows.open().hits.add(subject, hits, 0, text);
}

/// The total of a window and the seconds that it covers.
fn total(view: &View<'_>) -> (u64, u64) {
    (
        view.panes.iter().map(|pane| pane.hits.total()).sum(),
        view.covers.as_secs(),
    )
}

#[test]
fn a_minute_is_60_to_70_seconds_and_an_hour_60_to_70_minutes() {
    let mut windows = Windows::new(BYTES);
    // A hit in each second, for three hours.
    for now in 0..3 * 3_600 {
        add(&mut windows, now, now % 7, 1);
        let at = secs(now) + Duration::from_millis(999);
        assert!(!windows.is_due(at) || now % 10 == 9, "{now}");
        let (hits, covers) = total(&windows.view(Recent::Minute, at));
        assert_eq!(hits, covers + 1, "in the minute before {now}");
        assert_eq!(covers, if now < 70 { now } else { 60 + now % 10 });
        let (hits, covers) = total(&windows.view(Recent::Hour, at));
        assert_eq!(hits, covers + 1, "in the hour before {now}");
        assert_eq!(covers, if now < 4_200 { now } else { 3_600 + now % 600 });
    }
}

/// The thread that closes panes comes late.
#[test]
fn the_time_that_is_shown_is_the_time_that_was_counted() {
    let mut windows = Windows::new(BYTES);
    let second = |now: u64| now + now / 7 % 3;
    for now in 0..9_000 {
        if now % 3 == 0 || now % 11 == 0 {
            windows.advance(secs(now));
        }
        let text = |_: &mut Vec<u8>| (0, 0);
        windows.open().hits.add(1, second(now), 0, text);
        for view in [
            windows.view(Recent::Minute, secs(now)),
            windows.view(Recent::Hour, secs(now)),
        ] {
            let (hits, covers) = total(&view);
            assert_eq!(
                hits,
                (now - covers..=now).map(second).sum::<u64>(),
                "{now}: {covers}"
            );
        }
    }
}

#[test]
fn what_a_pane_counted_is_gone_after_its_window() {
    let mut windows = Windows::new(BYTES);
    add(&mut windows, 5, 1, 100);
    for (now, minute, hour) in [
        (5, 100, 100),
        (69, 100, 100),
        (70, 0, 100),
        (600, 0, 100),
        (4_199, 0, 100),
        (4_200, 0, 0),
    ] {
        windows.advance(secs(now));
        assert_eq!(
            (
                total(&windows.view(Recent::Minute, secs(now))).0,
                total(&windows.view(Recent::Hour, secs(now))).0
            ),
            (minute, hour),
            "{now}"
        );
    }
}

/// A machine that slept, or a process that got no time.
#[test]
fn a_gap_in_time_forgets_what_is_older_than_the_window() {
    for gap in [10_u64, 60, 70, 3_600, 4_200, 1_000_000, 40_000_000_000] {
        let mut windows = Windows::new(BYTES);
        add(&mut windows, 3, 1, 5);
        let now = 3 + gap;
        windows.advance(secs(now));
        assert!(!windows.is_due(secs(now)), "{gap}");
        let (minute, covers) = total(&windows.view(Recent::Minute, secs(now)));
        assert_eq!(minute, if now < 70 { 5 } else { 0 }, "{gap}");
        assert!(covers <= 70, "{gap}: {covers}");
        let (hour, covers) = total(&windows.view(Recent::Hour, secs(now)));
        assert_eq!(hour, if now < 4_200 { 5 } else { 0 }, "{gap}");
        assert!(covers <= 4_200, "{gap}: {covers}");
        add(&mut windows, now, 2, 7);
        assert_eq!(
            total(&windows.view(Recent::Minute, secs(now))).0,
            minute + 7
        );
    }
}

#[test]
fn panes_are_made_once() {
    let mut windows = Windows::new(BYTES);
    let allocated = allocation_counter::measure(|| {
        for now in 0..20_000 {
            add(&mut windows, now, now, 1);
        }
    });
    assert_eq!(allocated.count_total, 0);
}
