use super::*;

fn failing(server: &str, error: &'static str) -> FailingServer {
    FailingServer {
        server: server.to_owned(),
        failure: RedisFailure::because(error, "Connection refused"),
    }
}

fn failed(failed: u64) -> PolicyAnswers {
    PolicyAnswers {
        failed,
        ..PolicyAnswers::default()
    }
}

/// An outage log whose time begins at 0 s, and whose polls are a quarter of a second apart.
struct Run {
    log: OutageLog,
    began: Instant,
    at: Duration,
    lines: Vec<(f64, Line)>,
}

impl Run {
    fn new() -> Self {
        let began = Instant::now();
        Self {
            log: OutageLog::new(began, failed(5)),
            began,
            at: Duration::ZERO,
            lines: Vec::new(),
        }
    }

    /// Polls until `secs` after the beginning, with the result of `observed` at each time.
    fn until(&mut self, secs: f64, observed: impl Fn(f64) -> Observed) -> &mut Self {
        while self.at.as_secs_f64() < secs {
            self.at += POLL;
            let at = self.at.as_secs_f64();
            let lines = self.log.observe(self.began + self.at, observed(at));
            self.lines.extend(lines.into_iter().map(|line| (at, line)));
        }
        self
    }

    fn take(&mut self) -> Vec<(f64, Line)> {
        std::mem::take(&mut self.lines)
    }
}

/// The servers that fail, and ten answers a second since the start.
fn servers(failing: &[FailingServer]) -> impl Fn(f64) -> Observed {
    move |at| Observed {
        failing: failing.to_vec(),
        answers: failed(5 + (at * 10.0) as u64),
        ..Observed::default()
    }
}

#[test]
fn an_outage_is_a_line_at_its_beginning_and_a_line_at_its_end() {
    let mut run = Run::new();
    let down = failing("a:1", "connect");
    run.until(1.0, servers(&[]))
        .until(150.0, servers(std::slice::from_ref(&down)))
        .until(160.0, servers(&[]));
    let ended = Line::Ended {
        servers: "a:1".to_owned(),
        errors: "connect".to_owned(),
        lasted: Duration::from_secs_f64(150.25 - 1.0),
        answers: failed(1_502),
    };
    assert_eq!(run.take(), [(1.5, Line::Began(down)), (151.25, ended)]);
}

/// The log named the first cause only: Redis hangs, and then it is full.
#[test]
fn another_cause_that_lasts_has_a_line() {
    let mut run = Run::new();
    let [hangs, full] = ["timeout", "oom"].map(|error| failing("a:1", error));
    run.until(10.0, servers(std::slice::from_ref(&hangs)));
    // An error that one poll or two have is no cause.
    run.until(10.5, servers(std::slice::from_ref(&full)));
    run.until(20.0, servers(std::slice::from_ref(&hangs)));
    run.until(30.0, servers(std::slice::from_ref(&full)));
    // Another one within a minute waits.
    run.until(50.0, servers(std::slice::from_ref(&hangs)));
    run.until(200.0, servers(std::slice::from_ref(&full)));
    run.until(202.0, servers(&[]));
    let (ended, lines) = run
        .take()
        .split_last()
        .map(|(end, rest)| (end.clone(), rest.to_vec()))
        .expect("lines");
    assert_eq!(
        lines,
        [(0.5, Line::Began(hangs)), (21.25, Line::Changed(full))]
    );
    let Line::Ended { errors, .. } = ended.1 else {
        panic!("{ended:?}")
    };
    assert_eq!(errors, "timeout, oom");
}

#[test]
fn a_failure_that_one_look_finds_is_no_outage() {
    let mut run = Run::new();
    for second in 1..10 {
        run.until(f64::from(second), servers(&[])).until(
            f64::from(second) + 0.25,
            servers(&[failing("a:1", "timeout")]),
        );
    }
    assert_eq!(run.take(), []);
}

#[test]
fn servers_that_follow_have_lines_of_their_own_up_to_a_bound() {
    let mut run = Run::new();
    let (one, other) = (failing("a:1", "connect"), failing("b:1", "timeout"));
    run.until(2.0, servers(std::slice::from_ref(&one)));
    run.until(4.0, servers(&[one.clone(), other.clone()]))
        .until(6.0, servers(std::slice::from_ref(&other)));
    let lines: Vec<_> = run.take().into_iter().map(|(_, line)| line).collect();
    assert_eq!(lines, [Line::Began(one), Line::Began(other)]);

    let all: Vec<_> = (0..50)
        .map(|number| failing(&format!("{number:02}:1"), "connect"))
        .collect();
    let mut run = Run::new();
    run.until(20.0, servers(&all));
    // All of them recover and fail again and again.
    for second in 11..30 {
        run.until(2.0 * f64::from(second), servers(&all[..1]))
            .until(2.0 * f64::from(second) + 1.0, servers(&all));
    }
    run.until(100.0, servers(&[]));
    let lines = run.take();
    assert_eq!(lines.len(), MAX_SERVERS + 1);
    let Some((_, Line::Ended { servers, .. })) = lines.last() else {
        panic!("{lines:?}")
    };
    assert!(
        servers.starts_with("00:1, 01:1, ") && servers.ends_with(", 09:1 and 40 more"),
        "{servers}"
    );
}

/// A server that fails every three seconds has two lines a minute: the first outage has its own,
/// and those that follow are one until a minute is over.
#[test]
fn a_server_that_fails_again_and_again_does_not_fill_the_log() {
    let mut run = Run::new();
    for second in 0..200 {
        let second = f64::from(second) * 3.0;
        run.until(second + 1.0, servers(&[failing("a:1", "timeout")]))
            .until(second + 3.0, servers(&[]));
    }
    let lines = run.take();
    for (index, (at, line)) in lines.iter().enumerate() {
        assert_eq!(matches!(line, Line::Began(_)), index % 2 == 0, "{lines:?}");
        let least = 60.0 * (index.saturating_sub(1) / 2) as f64;
        assert!(*at >= least, "{at} < {least}: {lines:?}");
    }
    assert!((18..=22).contains(&lines.len()), "{lines:?}");
}

fn errors(count: impl Fn(f64) -> u64) -> impl Fn(f64) -> Observed {
    move |at| Observed {
        errors: vec![(RedisFailure::new("queue_full"), count(at))],
        ..Observed::default()
    }
}

#[test]
fn errors_of_single_requests_have_a_line_at_first_and_each_minute() {
    let mut run = Run::new();
    let times = |lines: Vec<(f64, Line)>| {
        let of = |(at, line)| {
            if let Line::Errors(_, times) = line {
                (at, times)
            } else {
                panic!("{line:?}")
            }
        };
        lines.into_iter().map(of).collect::<Vec<_>>()
    };
    run.until(150.0, errors(|at| (at * 4.0) as u64));
    assert_eq!(times(run.take()), [(0.5, 1), (60.5, 240), (120.5, 240)]);
    // After a quiet minute the next error has a line at once.
    let mut run = Run::new();
    run.until(150.0, errors(|at| (at / 20.0) as u64));
    assert_eq!(times(run.take()), [(20.25, 1), (80.25, 3), (140.25, 3)]);
    run.until(400.0, errors(|_| 7)).until(401.0, errors(|_| 8));
    assert_eq!(times(run.take()), [(400.5, 1)]);
}

#[test]
fn errors_during_an_outage_belong_to_it() {
    let mut run = Run::new();
    let down = failing("a:1", "connect");
    run.until(30.0, |at| Observed {
        failing: if at < 20.0 {
            vec![down.clone()]
        } else {
            Vec::new()
        },
        errors: vec![(RedisFailure::new("io"), (at.min(20.0) * 100.0) as u64)],
        answers: PolicyAnswers::default(),
    });
    let lines = run.take();
    assert!(
        lines
            .iter()
            .all(|(_, line)| !matches!(line, Line::Errors(..))),
        "{lines:?}"
    );
    assert_eq!(lines.len(), 2, "{lines:?}");
}

#[test]
fn the_same_error_of_two_deployments_is_one() {
    let mut run = Run::new();
    let both = |_| Observed {
        errors: vec![
            (RedisFailure::new("late"), 2),
            (RedisFailure::new("late"), 3),
        ],
        ..Observed::default()
    };
    assert_eq!(
        run.until(5.0, both).take(),
        [(0.5, Line::Errors(RedisFailure::new("late"), 5))]
    );
}

/// The next outage begins at the poll after the one that ended the last.
#[test]
fn an_outage_does_not_count_what_the_last_one_has_reported() {
    let mut run = Run::new();
    let down = [failing("a:1", "connect")];
    run.until(5.0, servers(&down)).until(6.25, servers(&[]));
    assert!(matches!(run.take()[..], [_, (6.25, Line::Ended { .. })]));
    run.until(8.0, servers(&down)).until(70.0, servers(&[]));
    let lines = run.take();
    let Some((at, Line::Ended { answers, .. })) = lines.last() else {
        panic!("{lines:?}")
    };
    assert_eq!(answers.failed, (at * 10.0) as u64 - 62, "{lines:?}");
}

/// All servers are in use again, but the outage is not over yet; and a failure that only one poll
/// finds is no outage.
#[test]
fn errors_of_single_requests_have_a_line_when_no_server_fails() {
    let mut run = Run::new();
    let down = failing("a:1", "connect");
    run.until(8.0, |at| Observed {
        failing: if at < 5.0 || (7.0..7.25).contains(&at) {
            vec![down.clone()]
        } else {
            Vec::new()
        },
        errors: vec![
            (RedisFailure::new("wrongtype"), u64::from(at >= 5.5)),
            (RedisFailure::new("late"), u64::from(at >= 7.0)),
        ],
        ..Observed::default()
    });
    let lines = run.take();
    let errors: Vec<_> = lines
        .iter()
        .filter(|(_, line)| matches!(line, Line::Errors(..)))
        .map(|(at, _)| *at)
        .collect();
    assert_eq!(errors, [5.75, 7.25], "{lines:?}");
}
