//! The faults of a simulation, and their schedule: faults of single commands, and conditions of the
//! server that last.
//!
//! All of them are drawn from the seed of the simulation, which repeats a failed run. Nothing here
//! applies a fault: that is `server`.

use fastrand::Rng;
use tokio::time::Duration;

/// Error replies of a server that has not executed the command.
const ERROR_REPLIES: [&str; 13] = [
    "LOADING Redis is loading the dataset in memory",
    "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
    "OOM command not allowed when used memory > 'maxmemory'.",
    "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to \
     disk.",
    "NOREPLICAS Not enough good replicas to write.",
    "READONLY You can't write against a read only replica.",
    "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
    "TRYAGAIN Multiple keys request during rehashing of slot",
    "CLUSTERDOWN The cluster is down",
    "NOSCRIPT No matching script. Please use EVAL.",
    "CROSSSLOT Keys in request don't hash to the same slot",
    "ERR Script attempted to access a non local key in a cluster node script: 5f, on @user_script:1.",
    "ERR something new",
];

/// Error replies that an operator has to fix.
const CONFIG_ERRORS: [&str; 2] = [
    "NOAUTH Authentication required.",
    "NOPERM this user has no permissions to run the 'multi' command",
];

/// A fault of one command.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    /// The server waits before it executes the command.
    Delay(Duration),
    /// The server executes the command, and waits before it replies.
    ReplyDelay(Duration),
    /// The command is executed or not, and the connection sends nothing from here on.
    NoMoreReplies { executes: bool },
    /// The connection is closed before the command is executed.
    CloseUnexecuted,
    /// The command is executed, and the connection is closed without a reply.
    CloseExecuted,
    /// The reply ends after this many bytes; then the connection is closed, or sends nothing more.
    TruncatedReply { bytes: usize, closes: bool },
    /// From here on the connection sends every byte by itself.
    SingleBytes,
    /// The command is not executed, and this error is the reply.
    ErrorReply(&'static str),
    /// The command is executed, and the reply is not RESP.
    Garbage,
    /// The command is executed, and one more reply follows its own.
    ExtraReply,
    /// The server's script cache is empty before the command.
    ScriptFlushed,
}

impl Fault {
    /// A random fault.
    pub(super) fn draw(random: &mut Rng, with_config_errors: bool) -> Self {
        let short = Duration::from_micros(random.u64(100..60_000));
        match random.u32(0..13) {
            0 => Self::Delay(short),
            1 => Self::ReplyDelay(short),
            2 => Self::NoMoreReplies {
                executes: random.bool(),
            },
            3 => Self::CloseUnexecuted,
            4 => Self::CloseExecuted,
            5 | 6 => Self::TruncatedReply {
                bytes: random.usize(..40),
                closes: random.bool(),
            },
            7 => Self::SingleBytes,
            8 | 9 => Self::ErrorReply(refusal(random, with_config_errors)),
            10 => Self::Garbage,
            11 => Self::ExtraReply,
            _ => Self::ScriptFlushed,
        }
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Delay(_) => "delay",
            Self::ReplyDelay(_) => "reply delay",
            Self::NoMoreReplies { .. } => "no more replies",
            Self::CloseUnexecuted => "close unexecuted",
            Self::CloseExecuted => "close executed",
            Self::TruncatedReply { closes: true, .. } => "truncated reply and close",
            Self::TruncatedReply { closes: false, .. } => "truncated reply and hang",
            Self::SingleBytes => "single bytes",
            Self::ErrorReply(_) => "error reply",
            Self::Garbage => "garbage",
            Self::ExtraReply => "extra reply",
            Self::ScriptFlushed => "script flushed",
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

/// A condition of the server that lasts until the next one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Condition {
    #[default]
    Healthy,
    /// The process is stopped, as by SIGSTOP: connections are accepted, nothing is read, and
    /// everything that arrived meanwhile is executed later.
    Stopped,
    /// Commands are executed, and no reply is sent.
    Silent,
    /// Attempts to connect are refused.
    RefusesConnections,
    /// Attempts to connect get no answer.
    Unreachable,
    /// Every command waits for this long.
    Slow(Duration),
    /// Commands of all connections are executed one after the other, and each takes this long for
    /// each of its arguments.
    Serial(Duration),
    /// Commands that count are answered with this error.
    Failing(&'static str),
    /// This many of a thousand commands have a fault.
    Faulty(u32),
}

impl Condition {
    fn draw(random: &mut Rng, with_config_errors: bool) -> Self {
        match random.u32(..8) {
            0 => Self::Stopped,
            1 => Self::Silent,
            2 => Self::RefusesConnections,
            3 => Self::Unreachable,
            4 => Self::Slow(Duration::from_micros(random.u64(200..40_000))),
            5 | 6 => Self::Failing(refusal(random, with_config_errors)),
            _ => Self::Faulty(random.u32(50..700)),
        }
    }

    /// A random condition in which no command is answered.
    pub(super) fn draw_outage(random: &mut Rng) -> Self {
        match random.u32(..5) {
            0 | 1 => Self::Stopped,
            2 => Self::Silent,
            3 => Self::RefusesConnections,
            _ => Self::Unreachable,
        }
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::Stopped => "stopped",
            Self::Silent => "silent",
            Self::RefusesConnections => "refuses connections",
            Self::Unreachable => "unreachable",
            Self::Slow(_) => "slow",
            Self::Serial(_) => "serial",
            Self::Failing(_) => "failing",
            Self::Faulty(_) => "faulty",
        }
    }
}

/// Event of the server at an instant.
#[derive(Clone, Copy, Debug)]
pub(super) enum ServerEvent {
    Condition(Condition),
    /// The server's clock jumps by this many microseconds.
    ClockJump(i64),
    /// The server closes all connections.
    CloseConnections,
    /// The server's script cache is emptied.
    FlushScripts,
}

/// The events and the rate of faults of a simulation.
#[derive(Clone, Debug)]
pub(super) struct Scenario {
    /// Each event, and the time since the one before.
    pub(super) events: Vec<(Duration, ServerEvent)>,
    /// This many of a thousand commands have a fault, whatever the condition.
    pub(super) fault_rate: u32,
    /// Some errors have to be fixed by an operator. After them the circuit breaker probes only
    /// every few seconds.
    pub(super) with_config_errors: bool,
}

impl Scenario {
    /// A few conditions with recoveries in between, and other events.
    pub(super) fn draw(random: &mut Rng) -> Self {
        let with_config_errors = random.u32(..8) == 0;
        let mut events = Vec::new();
        let wait = |random: &mut Rng, most: u64| Duration::from_micros(random.u64(..most));
        for _ in 0..random.u32(0..4) {
            events.push((
                wait(random, 200_000),
                ServerEvent::Condition(Condition::draw(random, with_config_errors)),
            ));
            events.push((
                wait(random, 400_000),
                ServerEvent::Condition(Condition::Healthy),
            ));
        }
        for _ in 0..random.u32(0..3) {
            let event = match random.u32(..3) {
                0 if random.bool() => {
                    ServerEvent::ClockJump(random.i64(-7_200_000_000..7_200_000_000))
                }
                0 => ServerEvent::ClockJump(random.i64(-30_000..30_000)),
                1 => ServerEvent::CloseConnections,
                _ => ServerEvent::FlushScripts,
            };
            let index = random.usize(..=events.len());
            events.insert(index, (wait(random, 100_000), event));
        }
        events.push((
            Duration::from_millis(50),
            ServerEvent::Condition(Condition::Healthy),
        ));
        Self {
            events,
            fault_rate: [0, 2, 10, 40][random.usize(..4)],
            with_config_errors,
        }
    }

    pub(super) fn length(&self) -> Duration {
        self.events.iter().map(|(wait, _)| *wait).sum()
    }

    pub(super) fn moves_clock(&self) -> bool {
        self.events
            .iter()
            .any(|(_, event)| matches!(event, ServerEvent::ClockJump(_)))
    }
}
