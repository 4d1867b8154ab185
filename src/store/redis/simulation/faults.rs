//! What goes wrong in a simulation, and when: single mishaps that befall commands, and weather that lasts.

use fastrand::Rng;
use tokio::time::Duration;

/// What a server says when it does not do what it is told. None of it ran.
const ERROR_REPLIES: [&str; 11] = [
    "LOADING Redis is loading the dataset in memory",
    "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
    "OOM command not allowed when used memory > 'maxmemory'.",
    "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
    "NOREPLICAS Not enough good replicas to write.",
    "READONLY You can't write against a read only replica.",
    "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
    "TRYAGAIN Multiple keys request during rehashing of slot",
    "CLUSTERDOWN The cluster is down",
    "NOSCRIPT No matching script. Please use EVAL.",
    "ERR something new",
];

/// The same, and somebody has to mend it.
const CONFIG_ERRORS: [&str; 2] = ["NOAUTH Authentication required.", "NOPERM this user has no permissions to run the 'multi' command"];

/// What befalls one command.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    /// The server takes this long before it does it.
    Late(Duration),
    /// And this long before it says so.
    SlowToSay(Duration),
    /// It is done or not, but nothing is said on this connection ever again.
    Mute { runs: bool },
    /// The connection is closed, and it was not done.
    CloseBefore,
    /// It was done, and the connection is closed.
    CloseAfter,
    /// So many bytes of the reply come, then nothing, or the end.
    Cut { bytes: usize, closes: bool },
    /// From here on each byte comes alone.
    Trickle,
    /// The server refuses.
    Refused(&'static str),
    /// What comes is no reply.
    Garbage,
    /// There is one more reply than commands.
    OneTooMany,
    /// The server forgot the script.
    Forgot,
}

impl Fault {
    /// Any of them.
    pub(super) fn draw(random: &mut Rng, with_config_errors: bool) -> Self {
        let short = Duration::from_micros(random.u64(100..60_000));
        match random.u32(0..13) {
            0 => Self::Late(short),
            1 => Self::SlowToSay(short),
            2 => Self::Mute { runs: random.bool() },
            3 => Self::CloseBefore,
            4 => Self::CloseAfter,
            5 | 6 => Self::Cut { bytes: random.usize(..40), closes: random.bool() },
            7 => Self::Trickle,
            8 | 9 => Self::Refused(refusal(random, with_config_errors)),
            10 => Self::Garbage,
            11 => Self::OneTooMany,
            _ => Self::Forgot,
        }
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Late(_) => "late",
            Self::SlowToSay(_) => "slow to say",
            Self::Mute { .. } => "mute",
            Self::CloseBefore => "close before",
            Self::CloseAfter => "close after",
            Self::Cut { closes: true, .. } => "cut and close",
            Self::Cut { closes: false, .. } => "cut and hang",
            Self::Trickle => "trickle",
            Self::Refused(_) => "refused",
            Self::Garbage => "garbage",
            Self::OneTooMany => "one too many",
            Self::Forgot => "forgot",
        }
    }
}

fn refusal(random: &mut Rng, with_config_errors: bool) -> &'static str {
    if with_config_errors && random.u32(..3) == 0 {
        CONFIG_ERRORS[random.usize(..2)]
    } else {
        ERROR_REPLIES[random.usize(..ERROR_REPLIES.len())]
    }
}

/// What lasts.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Condition {
    #[default]
    Calm,
    /// The process is stopped: connections are taken, nothing is read, and all that came meanwhile is done later.
    Stopped,
    /// Everything is read and nothing ever answered.
    Silent,
    /// Nothing listens.
    Refusing,
    /// Nobody answers to a connection being made.
    Unreachable,
    /// Every command takes long.
    Slow(Duration),
    /// All commands are done one after the other, and each takes so long for each of its words.
    Busy(Duration),
    /// Every write is refused.
    Erring(&'static str),
    /// So many of a thousand commands have a mishap.
    Rough(u32),
}

impl Condition {
    fn draw(random: &mut Rng, with_config_errors: bool) -> Self {
        match random.u32(..8) {
            0 => Self::Stopped,
            1 => Self::Silent,
            2 => Self::Refusing,
            3 => Self::Unreachable,
            4 => Self::Slow(Duration::from_micros(random.u64(200..40_000))),
            5 | 6 => Self::Erring(refusal(random, with_config_errors)),
            _ => Self::Rough(random.u32(50..700)),
        }
    }

    /// Whether no command gets an answer.
    pub(super) fn draw_outage(random: &mut Rng) -> Self {
        match random.u32(..5) {
            0 | 1 => Self::Stopped,
            2 => Self::Silent,
            3 => Self::Refusing,
            _ => Self::Unreachable,
        }
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Calm => "calm",
            Self::Stopped => "stopped",
            Self::Silent => "silent",
            Self::Refusing => "refusing",
            Self::Unreachable => "unreachable",
            Self::Slow(_) => "slow",
            Self::Busy(_) => "busy",
            Self::Erring(_) => "erring",
            Self::Rough(_) => "rough",
        }
    }
}

/// What happens at an instant.
#[derive(Clone, Copy, Debug)]
pub(super) enum ServerEvent {
    Condition(Condition),
    /// The server's clock jumps by so many microseconds.
    Jump(i64),
    /// The server closes all connections.
    HangUp,
    Forgets,
}

/// What happens in a simulation.
#[derive(Clone, Debug)]
pub(super) struct Scenario {
    /// Each so long after the one before.
    pub(super) events: Vec<(Duration, ServerEvent)>,
    /// Of a thousand commands so many have a mishap, whatever the weather.
    pub(super) fault_rate: u32,
    /// Some of what happens is for a person to mend, and looked at only every few seconds.
    pub(super) with_config_errors: bool,
}

impl Scenario {
    /// A few spells of bad weather, and what else may happen between.
    pub(super) fn draw(random: &mut Rng) -> Self {
        let with_config_errors = random.u32(..8) == 0;
        let mut events = Vec::new();
        let wait = |random: &mut Rng, most: u64| Duration::from_micros(random.u64(..most));
        for _ in 0..random.u32(0..4) {
            events.push((wait(random, 200_000), ServerEvent::Condition(Condition::draw(random, with_config_errors))));
            events.push((wait(random, 400_000), ServerEvent::Condition(Condition::Calm)));
        }
        for _ in 0..random.u32(0..3) {
            let event = match random.u32(..3) {
                0 if random.bool() => ServerEvent::Jump(random.i64(-7_200_000_000..7_200_000_000)),
                0 => ServerEvent::Jump(random.i64(-30_000..30_000)),
                1 => ServerEvent::HangUp,
                _ => ServerEvent::Forgets,
            };
            let place = random.usize(..=events.len());
            events.insert(place, (wait(random, 100_000), event));
        }
        events.push((Duration::from_millis(50), ServerEvent::Condition(Condition::Calm)));
        Self { events, fault_rate: [0, 2, 10, 40][random.usize(..4)], with_config_errors }
    }

    pub(super) fn length(&self) -> Duration {
        self.events.iter().map(|(wait, _)| *wait).sum()
    }

    pub(super) fn moves_clock(&self) -> bool {
        self.events.iter().any(|(_, event)| matches!(event, ServerEvent::Jump(_)))
    }
}
