//! The fake server: takes connections and commands, and lets happen to them what is to happen.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fastrand::Rng;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::sync::Notify;
use tokio::task::yield_now;
use tokio::time::{Duration, Instant, sleep, sleep_until};

use super::counters::{FakeCounters, Session};
use super::faults::{Condition, Fault, Scenario, ServerEvent};
use super::wire::{self, Command, RespReply};
use crate::store::redis::connection::simulated::SimulatedStream;
use crate::time::Micros;

/// About now, in the middle of an hour.
const START: Micros = Micros(1_800_001_000_000_000);

#[derive(Debug)]
pub(super) struct FakeServer {
    state: Mutex<ServerState>,
    /// Told to all connections that they end.
    hang_up: Notify,
    /// Told when the weather changes.
    changed: Notify,
}

#[derive(Debug)]
pub(super) struct ServerState {
    pub(super) counters: FakeCounters,
    pub(super) condition: Condition,
    /// Of a thousand commands.
    pub(super) fault_rate: u32,
    with_config_errors: bool,
    random: Rng,
    /// While it is busy: when it has done all that it has begun.
    free: Instant,
    /// Connections.
    pub(super) open: usize,
    /// What happened, by name.
    pub(super) occurrences: BTreeMap<&'static str, u64>,
}

/// What becomes of a connection after a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AfterCommand {
    Continue,
    Close,
}

/// One connection as the server sees it.
struct ClientConnection {
    stream: DuplexStream,
    out: Vec<u8>,
    session: Session,
    sends_nothing: bool,
    executes_nothing: bool,
    sends_single_bytes: bool,
}

impl FakeServer {
    pub(super) fn new(mut random: Rng, scenario: &Scenario, password: Option<&'static str>) -> Arc<Self> {
        let state = ServerState {
            counters: FakeCounters::new(Micros(START.0 + random.u64(..600_000_000)), password),
            condition: Condition::Calm,
            fault_rate: scenario.fault_rate,
            with_config_errors: scenario.with_config_errors,
            random,
            free: Instant::now(),
            open: 0,
            occurrences: BTreeMap::new(),
        };
        Arc::new(Self { state: Mutex::new(state), hang_up: Notify::new(), changed: Notify::new() })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, ServerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn happen(&self, event: ServerEvent) {
        let mut state = self.state();
        let name = match event {
            ServerEvent::Condition(condition) => {
                state.condition = condition;
                self.changed.notify_waiters();
                condition.name()
            }
            ServerEvent::Jump(micros) => {
                state.counters.clock = Micros(state.counters.clock.0.saturating_add_signed(micros));
                "jump"
            }
            ServerEvent::HangUp => {
                self.hang_up.notify_waiters();
                "hang up"
            }
            ServerEvent::Forgets => {
                state.counters.knows_script = false;
                "forgets"
            }
        };
        *state.occurrences.entry(name).or_default() += 1;
    }

    /// What `Socket::connect` gets in place of a socket.
    #[expect(clippy::disallowed_methods, reason = "a connection of the fake ends when the other side does")]
    pub(super) async fn connect(self: Arc<Self>) -> io::Result<SimulatedStream> {
        // Even the fastest network lets somebody else run first.
        yield_now().await;
        let condition = self.state().condition;
        match condition {
            Condition::Refusing => return Err(io::ErrorKind::ConnectionRefused.into()),
            Condition::Unreachable => std::future::pending().await,
            _ => {}
        }
        let size = [8 << 10, 64 << 10][self.state().random.usize(..2)];
        let (theirs, stream) = duplex(size);
        self.state().open += 1;
        let peer = ClientConnection {
            stream,
            out: Vec::new(),
            session: Session::default(),
            sends_nothing: false,
            executes_nothing: false,
            sends_single_bytes: false,
        };
        tokio::spawn(async move {
            self.serve(peer).await;
            self.state().open -= 1;
        });
        Ok(SimulatedStream::new(theirs))
    }

    async fn serve(&self, mut peer: ClientConnection) {
        let (mut input, mut chunk) = (Vec::new(), vec![0; 4_096]);
        loop {
            while let Some(command) = wire::take(&mut input) {
                self.while_stopped().await;
                if self.obey(command, &mut peer).await == AfterCommand::Close {
                    return;
                }
            }
            peer.flush().await;
            let count = tokio::select! {
                biased;
                () = self.hang_up.notified() => return,
                count = peer.stream.read(&mut chunk) => count.unwrap_or(0),
            };
            if count == 0 {
                return;
            }
            input.extend_from_slice(&chunk[..count]);
            self.while_stopped().await;
        }
    }

    async fn while_stopped(&self) {
        loop {
            let changed = self.changed.notified();
            if !matches!(self.state().condition, Condition::Stopped) {
                return;
            }
            changed.await;
        }
    }

    async fn obey(&self, command: Command, peer: &mut ClientConnection) -> AfterCommand {
        let (fault, condition) = self.draw(&command);
        match condition {
            Condition::Slow(time) => peer.wait(time).await,
            Condition::Busy(time) => self.take_turns(time * u32::try_from(command.len()).unwrap_or(u32::MAX), peer).await,
            _ => {}
        }
        peer.sends_nothing |= matches!(condition, Condition::Silent);
        let mut refusal = if let Condition::Erring(line) = condition { Some(line) } else { None };
        match fault {
            Some(Fault::Late(time)) => peer.wait(time).await,
            Some(Fault::CloseBefore) => {
                peer.flush().await;
                return AfterCommand::Close;
            }
            Some(Fault::Mute { runs }) => {
                peer.sends_nothing = true;
                peer.executes_nothing |= !runs;
            }
            Some(Fault::Refused(line)) => refusal = Some(line),
            Some(Fault::Trickle) => peer.sends_single_bytes = true,
            Some(Fault::Forgot) => self.state().counters.knows_script = false,
            _ => {}
        }
        if peer.executes_nothing {
            return AfterCommand::Continue;
        }
        let mut reply = Vec::new();
        self.state().counters.execute(&mut peer.session, command, refusal).write(&mut reply);
        match fault {
            Some(Fault::SlowToSay(time)) => peer.wait(time).await,
            Some(Fault::CloseAfter) => {
                peer.flush().await;
                return AfterCommand::Close;
            }
            Some(Fault::Cut { bytes, closes }) => {
                // At least the last byte is missing.
                reply.truncate(bytes.min(reply.len() - 1));
                peer.out.append(&mut reply);
                peer.flush().await;
                peer.sends_nothing = true;
                return if closes { AfterCommand::Close } else { AfterCommand::Continue };
            }
            Some(Fault::Garbage) => reply = b"HTTP/1.1 400 Bad Request\r\n".to_vec(),
            Some(Fault::OneTooMany) => RespReply::SimpleString("OK").write(&mut reply),
            _ => {}
        }
        peer.out.append(&mut reply);
        AfterCommand::Continue
    }

    /// Does what takes so long after all that others have brought before.
    async fn take_turns(&self, time: Duration, peer: &mut ClientConnection) {
        let free = {
            let mut state = self.state();
            state.free = state.free.max(Instant::now()) + time;
            state.free
        };
        // The timer's grain is a millisecond.
        if free > Instant::now() + Duration::from_millis(1) {
            peer.flush().await;
            sleep_until(free).await;
        }
    }

    fn draw(&self, command: &Command) -> (Option<Fault>, Condition) {
        let mut state = self.state();
        state.counters.hear(command);
        let ServerState { condition, fault_rate, with_config_errors, random, .. } = &mut *state;
        let condition = *condition;
        let fault_rate = if let Condition::Rough(fault_rate) = condition { fault_rate } else { *fault_rate };
        let fault = (random.u32(..1_000) < fault_rate).then(|| Fault::draw(random, *with_config_errors));
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

    /// Says what there is to say. The server goes on when nobody listens any more.
    async fn flush(&mut self) {
        let out = std::mem::take(&mut self.out);
        if self.sends_nothing {
            return;
        }
        let size = if self.sends_single_bytes { 1 } else { out.len().max(1) };
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
