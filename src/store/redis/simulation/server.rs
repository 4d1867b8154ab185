//! The fake server: it accepts connections, executes commands on its counters, and applies the
//! faults of the scenario.
//!
//! It executes in the test's runtime, on its paused clock. It never opens a real socket.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use fastrand::Rng;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::sync::Notify;
use tokio::task::yield_now;
use tokio::time::{Duration, Instant, sleep, sleep_until};

use super::counters::{FakeCounters, Session};
use super::faults::{Condition, Fault, Scenario, ServerEvent};
use super::wire::{self, Command, RespReply};
use crate::core::lock;
use crate::core::time::Micros;
use crate::store::redis::connection::simulated::SimulatedStream;

/// A Unix time in the middle of an hour: the server's clock at the start, in microseconds.
const START: Micros = Micros(1_800_001_000_000_000);

#[derive(Debug)]
pub(super) struct FakeServer {
    state: Mutex<ServerState>,
    /// Notified when all connections have to close.
    close_connections: Notify,
    /// Notified when the condition changes.
    condition_changed: Notify,
}

#[derive(Debug)]
pub(super) struct ServerState {
    pub(super) counters: FakeCounters,
    pub(super) condition: Condition,
    /// Faults per thousand commands.
    pub(super) fault_rate: u32,
    with_config_errors: bool,
    random: Rng,
    /// When it will have executed all commands that it has begun, in [`Condition::Serial`].
    free_at: Instant,
    /// Open connections.
    pub(super) open: usize,
    /// How often each event and fault occurred, by name.
    pub(super) occurrences: BTreeMap<&'static str, u64>,
}

/// State of a connection of the server after a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AfterCommand {
    Continue,
    Close,
}

/// The server's end of a connection.
struct ClientConnection {
    stream: DuplexStream,
    out: Vec<u8>,
    session: Session,
    sends_nothing: bool,
    executes_nothing: bool,
    sends_single_bytes: bool,
}

impl FakeServer {
    pub(super) fn new(
        mut random: Rng,
        scenario: &Scenario,
        password: Option<&'static str>,
    ) -> Arc<Self> {
        let state = ServerState {
            counters: FakeCounters::new(Micros(START.0 + random.u64(..600_000_000)), password),
            condition: Condition::Healthy,
            fault_rate: scenario.fault_rate,
            with_config_errors: scenario.with_config_errors,
            random,
            free_at: Instant::now(),
            open: 0,
            occurrences: BTreeMap::new(),
        };
        Arc::new(Self {
            state: Mutex::new(state),
            close_connections: Notify::new(),
            condition_changed: Notify::new(),
        })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, ServerState> {
        lock(&self.state)
    }

    pub(super) fn apply_event(&self, event: ServerEvent) {
        let mut state = self.state();
        let name = match event {
            ServerEvent::Condition(condition) => {
                state.condition = condition;
                self.condition_changed.notify_waiters();
                condition.name()
            }
            ServerEvent::ClockJump(micros) => {
                state.counters.clock = Micros(state.counters.clock.0.saturating_add_signed(micros));
                "clock jump"
            }
            ServerEvent::CloseConnections => {
                self.close_connections.notify_waiters();
                "close connections"
            }
            ServerEvent::FlushScripts => {
                state.counters.knows_script = false;
                "flush scripts"
            }
        };
        *state.occurrences.entry(name).or_default() += 1;
    }

    /// Accepts a connection, or fails as the condition requires. Returns the client's end instead
    /// of a socket.
    #[expect(
        clippy::disallowed_methods,
        reason = "a connection of the fake ends when the other side does"
    )]
    pub(super) async fn connect(self: Arc<Self>) -> io::Result<SimulatedStream> {
        // A real connect never completes before other tasks have run.
        yield_now().await;
        let condition = self.state().condition;
        match condition {
            Condition::RefusesConnections => return Err(io::ErrorKind::ConnectionRefused.into()),
            Condition::Unreachable => std::future::pending().await,
            _ => {}
        }
        let size = [8 << 10, 64 << 10][self.state().random.usize(..2)];
        let (theirs, stream) = duplex(size);
        self.state().open += 1;
        let client = ClientConnection {
            stream,
            out: Vec::new(),
            session: Session::default(),
            sends_nothing: false,
            executes_nothing: false,
            sends_single_bytes: false,
        };
        tokio::spawn(async move {
            self.serve(client).await;
            self.state().open -= 1;
        });
        Ok(SimulatedStream::new(theirs))
    }

    async fn serve(&self, mut client: ClientConnection) {
        let (mut input, mut chunk) = (Vec::new(), vec![0; 4_096]);
        loop {
            while let Some(command) = wire::take(&mut input) {
                self.while_stopped().await;
                if self.handle(command, &mut client).await == AfterCommand::Close {
                    return;
                }
            }
            client.flush().await;
            let count = tokio::select! {
                biased;
                () = self.close_connections.notified() => return,
                count = client.stream.read(&mut chunk) => count.unwrap_or(0),
            };
            if count == 0 {
                return;
            }
            input.extend_from_slice(&chunk[..count]);
            self.while_stopped().await;
        }
    }

    /// Waits until the condition is not [`Condition::Stopped`].
    async fn while_stopped(&self) {
        loop {
            let condition_changed = self.condition_changed.notified();
            if !matches!(self.state().condition, Condition::Stopped) {
                return;
            }
            condition_changed.await;
        }
    }

    async fn handle(&self, command: Command, client: &mut ClientConnection) -> AfterCommand {
        let (fault, condition) = self.draw(&command);
        match condition {
            Condition::Slow(time) => client.wait(time).await,
            Condition::Serial(time) => {
                self.take_turns(
                    time * u32::try_from(command.len()).unwrap_or(u32::MAX),
                    client,
                )
                .await;
            }
            _ => {}
        }
        client.sends_nothing |= matches!(condition, Condition::Silent);
        let mut error_reply = if let Condition::Failing(line) = condition {
            Some(line)
        } else {
            None
        };
        match fault {
            Some(Fault::Delay(time)) => client.wait(time).await,
            Some(Fault::CloseUnexecuted) => {
                client.flush().await;
                return AfterCommand::Close;
            }
            Some(Fault::NoMoreReplies { executes }) => {
                client.sends_nothing = true;
                client.executes_nothing |= !executes;
            }
            Some(Fault::ErrorReply(line)) => error_reply = Some(line),
            Some(Fault::SingleBytes) => client.sends_single_bytes = true,
            Some(Fault::ScriptFlushed) => self.state().counters.knows_script = false,
            _ => {}
        }
        if client.executes_nothing {
            return AfterCommand::Continue;
        }
        let mut reply = Vec::new();
        self.state()
            .counters
            .execute(&mut client.session, command, error_reply)
            .write(&mut reply);
        match fault {
            Some(Fault::ReplyDelay(time)) => client.wait(time).await,
            Some(Fault::CloseExecuted) => {
                client.flush().await;
                return AfterCommand::Close;
            }
            Some(Fault::TruncatedReply { bytes, closes }) => {
                // At least the last byte is missing.
                reply.truncate(bytes.min(reply.len() - 1));
                client.out.append(&mut reply);
                client.flush().await;
                client.sends_nothing = true;
                return if closes {
                    AfterCommand::Close
                } else {
                    AfterCommand::Continue
                };
            }
            Some(Fault::Garbage) => reply = b"HTTP/1.1 400 Bad Request\r\n".to_vec(),
            Some(Fault::ExtraReply) => RespReply::SimpleString("OK").write(&mut reply),
            _ => {}
        }
        client.out.append(&mut reply);
        AfterCommand::Continue
    }

    /// Waits for `time` after all commands that the server has begun before.
    async fn take_turns(&self, time: Duration, client: &mut ClientConnection) {
        let free_at = {
            let mut state = self.state();
            state.free_at = state.free_at.max(Instant::now()) + time;
            state.free_at
        };
        // The timer's resolution is a millisecond.
        if free_at > Instant::now() + Duration::from_millis(1) {
            client.flush().await;
            sleep_until(free_at).await;
        }
    }

    fn draw(&self, command: &Command) -> (Option<Fault>, Condition) {
        let mut state = self.state();
        state.counters.record_received(command);
        let ServerState {
            condition,
            fault_rate,
            with_config_errors,
            random,
            ..
        } = &mut *state;
        let condition = *condition;
        let fault_rate = if let Condition::Faulty(fault_rate) = condition {
            fault_rate
        } else {
            *fault_rate
        };
        let fault =
            (random.u32(..1_000) < fault_rate).then(|| Fault::draw(random, *with_config_errors));
        if let Some(fault) = fault {
            *state.occurrences.entry(fault.name()).or_default() += 1;
        }
        (fault, condition)
    }
}

impl ClientConnection {
    async fn wait(&mut self, time: Duration) {
        self.flush().await;
        sleep(time).await;
    }

    /// Sends the pending replies. A client that has closed the connection is no error.
    async fn flush(&mut self) {
        let out = std::mem::take(&mut self.out);
        if self.sends_nothing {
            return;
        }
        let size = if self.sends_single_bytes {
            1
        } else {
            out.len().max(1)
        };
        for bytes in out.chunks(size) {
            if self.stream.write_all(bytes).await.is_err() {
                return;
            }
            if self.sends_single_bytes {
                yield_now().await;
            }
        }
    }
}
