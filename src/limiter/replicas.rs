//! The number of replicas that share the limits (`REPLICAS`), for the policy `local`: a number, or
//! the number of addresses of a DNS name.
//!
//! The control thread resolves the name again and again. The requests read one atomic number: a
//! change restarts nothing, and no count is lost.
//!
//! It uses DNS instead of the API of Kubernetes, because DNS is the same on every platform and
//! needs no access rights. The system's resolver (`getaddrinfo`) makes the lookups, with its own
//! time limits and the search list of `/etc/resolv.conf`.
//!
//! The number in force follows the answers of DNS. It rises at once, falls only after all answers
//! of some time were lower, and stays if there is no answer.
//!
//! A number that is too low admits more than a limit, and one that is too high admits less. A
//! Service loses a replica's address during each rollout and each failed probe. Therefore the
//! number in force is the largest of the last 30 s.
//!
//! The first question waits until this process has been ready for some seconds, and the number is 1
//! until then. Before that, a new installation has no ready replica, and DNS servers remember the
//! answer that the name has no addresses for half a minute.
//!
//! An answer without addresses counts as no answer: this process is a replica itself. With
//! `REDIS_HEALTH_CHECK_ACTIVE_CONNECTION` an outage of Redis takes all pods out of the headless
//! Service, exactly when `local` needs their number.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use tokio::net::lookup_host;
use tokio::time::{Duration, Instant, sleep, timeout};

use crate::net::throttle::Throttle;
use crate::observe::health::{Health, Status};

/// The number of replicas in force, and the number of lookups of their name since the start; clones
/// share both.
#[derive(Clone, Debug)]
pub struct ReplicaCount(Arc<ReplicaState>);

#[derive(Debug)]
struct ReplicaState {
    count: AtomicU32,
    answered: AtomicU64,
    failed: AtomicU64,
}

impl ReplicaCount {
    /// The number `count`, until a lookup finds another one.
    pub fn new(count: NonZeroU32) -> Self {
        Self(Arc::new(ReplicaState {
            count: count.get().into(),
            answered: AtomicU64::new(0),
            failed: AtomicU64::new(0),
        }))
    }

    /// The number in force.
    pub fn get(&self) -> NonZeroU32 {
        NonZeroU32::new(self.0.count.load(Ordering::Relaxed)).unwrap_or(NonZeroU32::MIN)
    }

    /// Lookups that found addresses.
    pub fn answered(&self) -> u64 {
        self.0.answered.load(Ordering::Relaxed)
    }

    /// All other lookups.
    pub fn failed(&self) -> u64 {
        self.0.failed.load(Ordering::Relaxed)
    }
}

/// The time from the end of a lookup to the next one. It varies by a tenth, because replicas that
/// start together should not query together. Two small queries in this time are no load, and a
/// replica that starts is soon counted.
const INTERVAL: Duration = Duration::from_secs(5);

/// Time for which all answers have to be lower before the number in force falls.
const HOLD: Duration = Duration::from_secs(30);

/// Time for which this process has to be ready before the first lookup. Kubernetes needs three
/// seconds to notice that it is, and one to publish its address.
const SETTLE: Duration = Duration::from_secs(6);

/// Waits until the process has been ready for [`SETTLE`].
async fn has_been_ready(health: &Health) {
    let mut status = health.subscribe();
    loop {
        let _ = status.wait_for(|status| *status == Status::Ready).await;
        let ended = status.wait_for(|status| *status != Status::Ready);
        if timeout(SETTLE, ended).await.is_err() {
            return;
        }
    }
}

/// Resolves `name` at intervals, and sets the number of replicas to the result; never ends.
pub(crate) async fn follow(name: DnsName, replicas: ReplicaCount, health: Health) {
    has_been_ready(&health).await;
    let mut recent = RecentAnswers::new();
    loop {
        let answer = name.lookup().await;
        let ReplicaState {
            count,
            answered,
            failed,
        } = &*replicas.0;
        let lookups = if answer.is_ok() { answered } else { failed };
        lookups.fetch_add(1, Ordering::Relaxed);
        let event = recent.observe(Instant::now(), answer);
        count.store(recent.count().get(), Ordering::Relaxed);
        if let Some(event) = event {
            log(&name, &event, recent.count());
        }
        sleep(INTERVAL.mul_f64(0.9 + 0.2 * fastrand::f64())).await;
    }
}

/// The IPv4 or the IPv6 addresses, whichever are more, because a replica may have one of each.
pub(crate) fn of_one_family(found: impl Iterator<Item = SocketAddr>) -> BTreeSet<SocketAddr> {
    let (four, six): (BTreeSet<_>, BTreeSet<_>) = found.partition(SocketAddr::is_ipv4);
    if six.len() > four.len() { six } else { four }
}

/// Writes a line of the log. `replicas`: the number in force.
fn log(name: &DnsName, event: &ReplicasEvent, replicas: NonZeroU32) {
    match event {
        ReplicasEvent::First => {
            tracing::info!(%name, replicas, "REPLICAS: name resolved; on_store_failure: local \
                admits this replica's share of each limit");
        }
        ReplicasEvent::Changed { before, recovered } => {
            tracing::info!(%name, replicas, before, recovered, "REPLICAS: number of replicas \
                changed");
        }
        ReplicasEvent::Failing(error) => {
            tracing::warn!(%name, error, replicas, "REPLICAS: cannot resolve the name; keeping the \
                number of replicas");
        }
        ReplicasEvent::Recovered => {
            tracing::info!(%name, replicas, "REPLICAS: name resolved again");
        }
    }
}

/// Maximum number of lower numbers that are remembered. Ten answers fit into the time that they are
/// held; with more, the number in force only stays high for longer.
pub(crate) const MAX_STEPS: usize = 32;

/// The shortest time between two reports of failures. Without it, a server that fails every few
/// seconds would fill the log.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);

/// A line of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ReplicasEvent {
    /// The first answer.
    First,
    /// Another number is in force. `recovered`: a failure that was reported ended with it.
    Changed { before: NonZeroU32, recovered: bool },
    /// Lookups fail, with the reason.
    Failing(String),
    /// There are answers again, with the same number.
    Recovered,
}

/// The answers of the last 30 s.
#[derive(Debug)]
struct RecentAnswers {
    /// Numbers with the time from which on no answer was larger: the first is in force, and each is
    /// smaller than the one before.
    steps: VecDeque<(Instant, NonZeroU32)>,
    /// Whether a failure was reported that has not ended.
    is_failing: bool,
    reports: Throttle,
}

impl RecentAnswers {
    fn new() -> Self {
        Self {
            steps: VecDeque::new(),
            is_failing: false,
            reports: Throttle::new(REPORT_INTERVAL),
        }
    }

    /// The number in force; 1 before the first answer.
    fn count(&self) -> NonZeroU32 {
        self.steps
            .front()
            .map_or(NonZeroU32::MIN, |&(_, count)| count)
    }

    /// Records an answer or the error of a lookup. Returns the event to log, if there is one.
    fn observe(
        &mut self,
        now: Instant,
        answer: Result<NonZeroU32, String>,
    ) -> Option<ReplicasEvent> {
        let answer = match answer {
            Ok(answer) => answer,
            Err(_) if self.is_failing || self.reports.admit(now).is_none() => return None,
            Err(error) => {
                self.is_failing = true;
                return Some(ReplicasEvent::Failing(error));
            }
        };
        let before = self.steps.front().map(|&(_, count)| count);
        let mut since = now;
        while let Some(&(lower_since, _)) = self.steps.back().filter(|(_, count)| *count < answer) {
            since = lower_since;
            self.steps.pop_back();
        }
        let is_new = self.steps.back().is_none_or(|&(_, count)| count != answer);
        if is_new && self.steps.len() < MAX_STEPS {
            self.steps.push_back((since, answer));
        }
        // A number was last answered just before the next one.
        let is_over = |&(since, _): &(Instant, _)| now.duration_since(since) >= HOLD;
        while self.steps.get(1).is_some_and(is_over) {
            self.steps.pop_front();
        }
        let recovered = std::mem::take(&mut self.is_failing);
        match before {
            None => Some(ReplicasEvent::First),
            Some(before) if before != self.count() => {
                Some(ReplicasEvent::Changed { before, recovered })
            }
            Some(_) => recovered.then_some(ReplicasEvent::Recovered),
        }
    }
}

/// Source of the number of replicas: the setting `REPLICAS` as written, a number, or a DNS name in
/// gRPC's notation (`dns:NAME`). Source: gRPC Name Resolution, "Name Syntax".
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A number.
    Fixed(NonZeroU32),
    /// The number of addresses of this name.
    Dns(DnsName),
}

/// A host name. Unless it ends in a dot, it may be relative to the search list of
/// `/etc/resolv.conf`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsName(String);

impl fmt::Display for DnsName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "dns:{}", self.0)
    }
}

impl DnsName {
    /// The number of addresses, of one family. A name that does not exist or has no addresses is
    /// an error and not a count of 0, because this process is a replica itself.
    async fn lookup(&self) -> Result<NonZeroU32, String> {
        // The port has no meaning here.
        let found = lookup_host((self.0.as_str(), 0)).await;
        let count = found.map(|found| of_one_family(found).len());
        let cause = match count.map(|count| NonZeroU32::new(count as u32)) {
            Ok(Some(count)) => return Ok(count),
            Ok(None) => "no addresses".to_owned(),
            Err(error) => error.to_string(),
        };
        Err(format!(
            "{cause}; check that the DNS server answers, and that the name is the name of a \
             headless Service (clusterIP: None) with ready pods"
        ))
    }
}

impl Source {
    /// Reads a number, or a name.
    ///
    /// # Errors
    /// The form of a valid source.
    pub fn try_new(text: &str) -> Result<Self, String> {
        let Some(name) = text.strip_prefix("dns:") else {
            let number = text.parse().map_err(|_| {
                "write a number from 1 on, or dns: and a name with an address for each replica, as \
                 dns:ratelimit-headless"
                    .to_owned()
            });
            return number.map(Self::Fixed);
        };
        // gRPC's notation may have a server between the second and the third slash.
        let name = name.strip_prefix("///").unwrap_or(name);
        if name.starts_with("//") {
            return Err(
                "a DNS server cannot be chosen; write dns: and the name, which the servers \
                in /etc/resolv.conf resolve"
                    .to_owned(),
            );
        }
        checked(name).map(Self::Dns)
    }
}

/// Reads a host name. Source of the lengths: RFC 1035, section 2.3.4.
fn checked(text: &str) -> Result<DnsName, String> {
    if let Some((name, port)) = text.rsplit_once(':')
        && port.parse::<u16>().is_ok()
    {
        return Err(format!("a port has no meaning here; write dns:{name}"));
    }
    if text.parse::<IpAddr>().is_ok() {
        return Err(format!(
            "{text} is an address; write a name that has the address of each replica"
        ));
    }
    let name = text.strip_suffix('.').unwrap_or(text);
    let is_label = |label: &str| (1..=63).contains(&label.len()) && label.bytes().all(is_letter);
    if name.len() > 253 || !name.split('.').all(is_label) {
        return Err(format!(
            "{text:?} is no DNS name; write labels of letters, digits, - and _ with dots between \
             them, 253 characters at most"
        ));
    }
    Ok(DnsName(text.to_owned()))
}

/// Letters of host names, and `_`, which some cluster systems use in names. Source: RFC 1123,
/// section 2.1.
fn is_letter(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn number(count: u32) -> NonZeroU32 {
        NonZeroU32::new(count).expect("not 0")
    }

    /// Observes pairs of a second and an answer (0 for none), and returns the number in force after
    /// each.
    fn in_force(answers: &[(u64, u32)]) -> Vec<u32> {
        let (mut recent, begin) = (RecentAnswers::new(), Instant::now());
        let observe = |&(secs, answer): &(u64, u32)| {
            let answer = NonZeroU32::new(answer).ok_or_else(|| "no answer".to_owned());
            recent.observe(begin + Duration::from_secs(secs), answer);
            recent.count().get()
        };
        answers.iter().map(observe).collect()
    }

    #[test]
    fn up_at_once_and_down_when_all_answers_of_half_a_minute_were_lower() {
        for (answers, expected) in [
            (&[(0, 2), (5, 5), (10, 5)][..], &[2, 5, 5][..]),
            (&[(0, 5), (5, 2), (34, 2), (35, 2)], &[5, 5, 5, 2]),
            (
                &[(0, 5), (5, 2), (30, 5), (35, 2), (59, 2), (64, 2), (65, 2)],
                &[5, 5, 5, 5, 5, 5, 2],
            ),
            // Not to the last number, but to the largest of the time.
            (
                &[(0, 5), (5, 2), (20, 4), (35, 3), (64, 3), (65, 3)],
                &[5, 5, 5, 4, 4, 3],
            ),
            (
                &[(0, 5), (5, 4), (20, 2), (35, 1), (50, 1), (65, 1)],
                &[5, 5, 5, 4, 2, 1],
            ),
        ] {
            assert_eq!(in_force(answers), expected, "{answers:?}");
        }
    }

    #[test]
    fn without_an_answer_the_number_stays() {
        assert_eq!(
            in_force(&[(0, 0), (5, 0)]),
            [1, 1],
            "one, while there never was an answer"
        );
        assert_eq!(
            in_force(&[(0, 3), (5, 0), (3_600, 0), (3_605, 3)]),
            [3, 3, 3, 3]
        );
        assert_eq!(
            in_force(&[(0, 3), (5, 2), (10, 0), (3_600, 0), (3_605, 2)]),
            [3, 3, 3, 3, 2],
            "no answer, no smaller number"
        );
        assert_eq!(
            in_force(&[(0, 3), (5, 0), (10, 7)]),
            [3, 3, 7],
            "a larger one at once"
        );
    }

    #[test]
    fn changes_failures_and_recoveries_are_reported_once() {
        let (mut recent, begin) = (RecentAnswers::new(), Instant::now());
        let mut at = |secs, answer: u32| {
            recent.observe(
                begin + Duration::from_secs(secs),
                NonZeroU32::new(answer).ok_or_else(|| "no answer".to_owned()),
            )
        };
        let failing = || Some(ReplicasEvent::Failing("no answer".to_owned()));
        let changed = |before, recovered| {
            Some(ReplicasEvent::Changed {
                before: number(before),
                recovered,
            })
        };
        assert_eq!(at(0, 0), failing());
        assert_eq!(at(5, 0), None);
        assert_eq!(
            at(10, 1),
            Some(ReplicasEvent::First),
            "the first answer, although the number is the same"
        );
        assert_eq!(at(15, 1), None);
        assert_eq!(at(20, 4), changed(1, false));
        assert_eq!(at(25, 0), None, "too soon after the last report");
        assert_eq!(at(30, 4), None, "and so its end is none either");
        assert_eq!(at(60, 0), failing());
        assert_eq!(at(500, 0), None);
        assert_eq!(at(505, 4), Some(ReplicasEvent::Recovered));
        assert_eq!(at(510, 3), None);
        assert_eq!(at(540, 3), changed(4, false));
    }

    proptest! {
        #![proptest_config(crate::testing::property(256))]

        /// The number in force is the largest of all answers of the last half minute and the one
        /// before them.
        #[test]
        fn it_is_the_largest_of_the_time(answers in prop::collection::vec((5_u64..9, 1_u32..12), 1..60)) {
            let mut at = 0;
            let answers: Vec<_> = answers.into_iter().map(|(after, count)| { at += after; (at, count) }).collect();
            for (index, &force) in in_force(&answers).iter().enumerate() {
                let now = answers[index].0;
                // An answer counts until the next one.
                let counts = |&last: &usize| last == index || answers[last + 1].0 + 30 > now;
                let largest = (0..=index).filter(counts).map(|last| answers[last].1).max();
                prop_assert_eq!(Some(force), largest, "{:?}", &answers[..=index]);
            }
        }

        /// For any number of falling answers, few are remembered, and the number in force is the
        /// first one.
        #[test]
        fn memory_is_bounded(mut answers in prop::collection::vec(1_u32..100_000, 1..500)) {
            answers.sort_unstable_by(|one, other| other.cmp(one));
            let (mut recent, begin) = (RecentAnswers::new(), Instant::now());
            for (millis, &answer) in answers.iter().enumerate() {
                recent.observe(begin + Duration::from_millis(millis as u64), Ok(number(answer)));
                prop_assert!(recent.steps.len() <= MAX_STEPS);
                prop_assert_eq!(recent.count().get(), answers[0]);
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_that_was_ready_for_a_moment_was_not_ready_for_long() {
        let (health, began) = (Health::default(), Instant::now());
        let reports = async {
            for (after, status) in [
                (3, Status::Ready),
                (5, Status::NotReady(Vec::new())),
                (60, Status::Ready),
            ] {
                sleep(Duration::from_secs(after)).await;
                health.report(status);
            }
        };
        tokio::join!(reports, has_been_ready(&health));
        assert_eq!(began.elapsed().as_secs(), 3 + 5 + 60 + 6);
    }

    #[test]
    fn a_pod_with_two_families_is_one_replica() {
        let found = |texts: &[&str]| {
            let addresses = texts.iter().map(|text| text.parse().expect("an address"));
            of_one_family(addresses)
                .into_iter()
                .map(|address: SocketAddr| address.to_string())
                .collect::<Vec<_>>()
        };
        assert_eq!(
            found(&[
                "10.0.0.1:1",
                "[fd00::1]:1",
                "10.0.0.2:1",
                "10.0.0.1:1",
                "[fd00::2]:1"
            ]),
            ["10.0.0.1:1", "10.0.0.2:1"]
        );
        assert_eq!(
            found(&["10.0.0.1:1", "[fd00::1]:1", "[fd00::2]:1"]),
            ["[fd00::1]:1", "[fd00::2]:1"]
        );
    }

    fn parsed(text: &str) -> Result<String, String> {
        Source::try_new(text).map(|source| match source {
            Source::Fixed(number) => number.to_string(),
            Source::Dns(name) => name.to_string(),
        })
    }

    #[test]
    fn a_number_or_a_name_in_the_notation_of_grpc() {
        for (text, expected) in [
            ("1", "1"),
            ("4294967295", "4294967295"),
            ("dns:ratelimit-headless", "dns:ratelimit-headless"),
            ("dns:///ratelimit-headless", "dns:ratelimit-headless"),
            (
                "dns:ratelimit-headless.edge.svc.cluster.local.",
                "dns:ratelimit-headless.edge.svc.cluster.local.",
            ),
            ("dns:tasks.weir_2", "dns:tasks.weir_2"),
        ] {
            assert_eq!(parsed(text).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn anything_else_is_refused_with_what_to_write() {
        let long = format!("dns:{}", "a.".repeat(200));
        let label = format!("dns:{}.a", "a".repeat(64));
        for (text, remedy) in [
            ("0", "a number from 1 on"),
            ("-1", "a number from 1 on"),
            ("4294967296", "a number from 1 on"),
            ("", "a number from 1 on"),
            ("ratelimit-headless", "or dns: and a name"),
            ("dns:", "is no DNS name"),
            ("dns:.", "is no DNS name"),
            ("dns:a..b", "is no DNS name"),
            ("dns:a b", "is no DNS name"),
            ("dns:a/b", "is no DNS name"),
            ("dns:ü", "is no DNS name"),
            (long.as_str(), "253 characters"),
            (
                "dns:ratelimit-headless:8081",
                "write dns:ratelimit-headless",
            ),
            ("dns:10.0.0.1", "is an address"),
            ("dns:::1", "write dns:"),
            (label.as_str(), "is no DNS name"),
            ("dns://10.96.0.10", "cannot be chosen"),
            ("dns://10.96.0.10:53/a", "cannot be chosen"),
        ] {
            let error = Source::try_new(text).expect_err(text);
            assert!(error.contains(remedy), "{text}: {error}");
        }
    }
}
